"""Facts about forget batches beside retained ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from clients.forgetting import Records, Sets
from clients.pairs import paired_epochs
from clients.site import Site
from clients.training import LocalPlan

MakeSite = Callable[..., Site]


def sets(site: Site, forget: int, retain: int) -> Sets:
    everything = np.arange(forget + retain)
    return Sets(Records(site, everything[:forget], "forget"), Records(site, everything[forget:], "retain"))


@pytest.mark.parametrize(("forget", "retain"), [(20, 5), (5, 20), (8, 8), (1, 9), (9, 1), (17, 3)])
def test_every_forget_record_is_read_once_an_epoch_beside_some_retained_ones(
    make_site: MakeSite, forget: int, retain: int
) -> None:
    site, plan = make_site(), LocalPlan(lr=0.1, epochs=3, seed=1, batch_size=4)
    both = sets(site, forget, retain)
    alone = [list(epoch) for epoch in both.forget.epochs(plan)]
    found = [list(epoch) for epoch in paired_epochs(both, plan)]
    assert [[len(b) for b in epoch] for epoch in found] == [[4] * len(epoch) for epoch in alone]
    for epoch, expected in zip(found, alone, strict=True):
        for batch, (x, y) in zip(epoch, expected, strict=True):
            assert torch.equal(batch[0], x) and torch.equal(batch[1], y)
            assert len(batch[2]) == len(batch[3]) > 0


def test_retained_records_go_on_where_they_were_and_start_again_when_used_up(make_site: MakeSite) -> None:
    site, plan = make_site(), LocalPlan(lr=0.1, epochs=2, seed=1, batch_size=4)
    both = sets(site, 8, 12)
    seen = [batch[2] for epoch in paired_epochs(both, plan) for batch in epoch]
    expected = [x for epoch in both.retain.epochs(plan, 2) for x, _ in epoch][: len(seen)]
    assert len(seen) == 4 and all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_without_retained_records_the_forget_batches_are_alone(make_site: MakeSite) -> None:
    site, plan = make_site(), LocalPlan(lr=0.1, epochs=1, seed=1, batch_size=4)
    assert [len(batch) for batch in paired_epochs(sets(site, 8, 0), plan)[0]] == [2, 2]
