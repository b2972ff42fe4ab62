"""What may not change is put back bit for bit."""

from __future__ import annotations

import torch

from tests.unlearning.toy_nets import changed, normed, seeded
from unlearning.partial import confined
from unlearning.state import State


def test_only_what_is_named_and_marked_is_new():
    before, after = (State.from_module(seeded(normed, seed)) for seed in (0, 1))
    rows = torch.tensor([True, False, True, False, False, False]).view(6, 1, 1, 1)
    held = confined(before, after, {"0.weight": rows, "6.bias": torch.tensor(True)})
    params = {name for name in changed(before, held) if name in before.params}
    assert params == {"0.weight", "6.bias"}
    assert torch.equal(held.params["0.weight"][[0, 2]], after.params["0.weight"][[0, 2]])
    assert torch.equal(held.params["0.weight"][[1, 3, 4, 5]], before.params["0.weight"][[1, 3, 4, 5]])


def test_buffers_are_the_new_ones():
    before, after = (State.from_module(seeded(normed, seed)) for seed in (0, 1))
    assert confined(before, after, {}).float_buffers is after.float_buffers
    assert changed(State(before.params, after.float_buffers, after.int_buffers), confined(before, after, {})) == set()
