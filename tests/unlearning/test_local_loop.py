"""Facts about the hooks of the guarded loop that methods without a loop of their own rely on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unlearning.local import run_epochs


def half_square(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((model(x) - y) ** 2).mean() / 2


@pytest.mark.parametrize(("answer", "steps"), [(True, 2), (False, 6), (None, 6)])
def test_a_step_can_end_the_run_in_the_middle_of_an_epoch(answer: bool | None, steps: int) -> None:
    model, batch, taken = nn.Linear(1, 1), (torch.ones(2, 1), torch.zeros(2, 1)), []

    def after_step() -> bool | None:
        taken.append(model.weight.item())
        return answer if len(taken) == 2 else None

    run = run_epochs(model, half_square, [[batch] * 3, [batch] * 3], lr=0.1, after_step=after_step)
    assert (run.status, run.steps, run.examples) == ("ok", steps, 2 * steps)
    assert model.weight.item() == taken[-1], "nothing is undone"


def test_a_step_that_goes_too_far_is_undone_even_where_it_would_end_the_run() -> None:
    model = nn.Linear(1, 1)
    before = model.weight.item()
    batch = (torch.ones(2, 1), torch.full((2, 1), 100.0))
    run = run_epochs(model, half_square, [[batch]], lr=100.0, after_step=lambda: True)
    assert run.status == "diverged"
    assert model.weight.item() == before
