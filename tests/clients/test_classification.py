"""The classification task: inputs, loss, and every score and divergence against METRICS' figures and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy
from torch import nn

from clients.catalogue import TASKS
from clients.tasks.base import DIVERGENCES, SCORES
from clients.tasks.classification import class_divergences, class_scores

TASK = TASKS.get("classification")


def logits(*probabilities: float) -> torch.Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()


class TestInputs:
    def test_grey_28_becomes_three_equal_channels_of_32_in_minus_one_to_one(self) -> None:
        images = np.zeros((2, 28, 28), dtype=np.uint8)
        images[0, 0, 0], images[1, 27, 27] = 255, 51
        x = TASK.to_inputs(images)
        assert (x.shape, x.dtype) == ((2, 3, 32, 32), torch.float32)
        assert x[0, :, 2, 2].tolist() == [1.0, 1.0, 1.0]
        assert x[1, 0, 29, 29].item() == pytest.approx(-0.6)
        assert x[0].sum().item() == pytest.approx(3 * (1 - (32 * 32 - 1)))

    def test_colour_keeps_its_channels_in_order(self) -> None:
        images = np.zeros((1, 32, 32, 3), dtype=np.uint8)
        images[0, 4, 5] = (255, 0, 255)
        assert TASK.to_inputs(images)[0, :, 4, 5].tolist() == [1.0, -1.0, 1.0]

    def test_an_odd_margin_puts_the_extra_row_below(self) -> None:
        x = TASK.to_inputs(np.full((1, 9, 40), 255, dtype=np.uint8))
        rows = (x[0, 0] == 1).any(1).nonzero().flatten().tolist()
        assert (rows[0], rows[-1], x.shape[-1]) == (11, 19, 40)

    def test_the_stored_images_stay_as_they_are(self) -> None:
        images = np.full((1, 28, 28), 7, dtype=np.uint8)
        TASK.to_inputs(images)
        assert (images == 7).all()


class TestLoss:
    def test_loss_is_the_mean_cross_entropy_through_the_models_forward(self) -> None:
        calls = []

        class Spy(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                calls.append(x)
                return torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]])

        y = torch.tensor([0, 2])
        value = TASK.loss(Spy(), torch.zeros(2), y)
        assert len(calls) == 1
        expected = (math.log(math.e**3 + math.e + 1) - 3 + math.log(3)) / 2
        assert value.item() == pytest.approx(expected, rel=1e-6)

    def test_metric_is_the_share_that_is_right(self) -> None:
        class Fixed(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.eye(3)[torch.tensor([0, 1, 1, 2])]

        loss, metric = TASK.loss_and_metric(Fixed(), torch.zeros(4), torch.tensor([0, 1, 2, 2]))
        assert metric.item() == 0.75
        assert loss.item() == pytest.approx(TASK.loss(Fixed(), torch.zeros(4), torch.tensor([0, 1, 2, 2])).item())


class TestScores:
    def test_phi_and_hinge_of_the_specified_example(self) -> None:
        scores = class_scores(torch.tensor([[3.0, 1.0, 0.0]]), torch.tensor([0]))
        assert scores["phi"].item() == pytest.approx(1.68674, abs=1e-5)
        assert scores["hinge"].item() == pytest.approx(2.0)

    @pytest.mark.parametrize(("p", "phi"), [(0.9, 2.19722), (0.5, 0.0)])
    def test_phi_is_the_logit_of_the_true_class_probability(self, p: float, phi: float) -> None:
        scores = class_scores(logits(p, (1 - p) / 2, (1 - p) / 2), torch.tensor([0]))
        assert scores["phi"].item() == pytest.approx(phi, abs=1e-5)

    def test_phi_does_not_saturate_where_the_probability_does(self) -> None:
        assert class_scores(torch.tensor([[1e4, 0.0]]), torch.tensor([0]))["phi"].item() == 1e4

    def test_entropy_and_loss_agree_with_scipy(self) -> None:
        p = (0.7, 0.2, 0.1)
        scores = class_scores(logits(*p), torch.tensor([1]))
        assert scores["entropy"].item() == pytest.approx(entropy(p))
        assert scores["loss"].item() == pytest.approx(-math.log(0.2))

    def test_entropy_of_a_certain_answer_is_zero(self) -> None:
        assert class_scores(torch.tensor([[1e4, -1e4]]), torch.tensor([0]))["entropy"].item() == 0.0

    def test_a_tie_goes_to_the_lowest_class(self) -> None:
        scores = class_scores(torch.zeros(2, 3), torch.tensor([0, 1]))
        assert scores["metric"].tolist() == [1.0, 0.0]

    def test_every_score_is_double_and_one_a_record(self) -> None:
        scores = class_scores(torch.randn(5, 3), torch.zeros(5, dtype=torch.int64))
        assert tuple(scores) == SCORES
        assert all(s.shape == (5,) and s.dtype == torch.float64 for s in scores.values())

    def test_outputs_that_are_not_finite_give_nan_for_that_record_only(self) -> None:
        scores = class_scores(torch.tensor([[torch.nan, 0.0], [1.0, 0.0], [torch.inf, 0.0]]), torch.tensor([0, 0, 0]))
        assert all(torch.isnan(s).tolist() == [True, False, True] for s in scores.values())

    def test_one_class_has_no_phi(self) -> None:
        assert math.isnan(class_scores(torch.ones(1, 1), torch.tensor([0]))["phi"].item())


class TestDivergences:
    P, Q = (0.7, 0.1, 0.1, 0.1), (0.1, 0.1, 0.1, 0.7)

    def test_the_specified_figures(self) -> None:
        found = class_divergences(logits(*self.P), logits(*self.Q))
        assert found["actdist"].item() == pytest.approx(0.848528, abs=1e-6)
        assert found["js"].item() == pytest.approx(0.253102, abs=1e-6)
        assert found["js_supreme"].item() == pytest.approx(0.082668, abs=1e-6)
        assert found["agree"].item() == 0.0

    def test_kl_has_the_first_model_first(self) -> None:
        a, b = logits(0.5, 0.5), logits(0.25, 0.75)
        assert class_divergences(a, b)["kl"].item() == pytest.approx(0.143841, abs=1e-6)
        assert class_divergences(b, a)["kl"].item() == pytest.approx(entropy((0.25, 0.75), (0.5, 0.5)))

    def test_kl_t4_softens_both_models(self) -> None:
        z = torch.tensor([[8.0, 0.0, -4.0]], dtype=torch.float64)
        p, q = torch.softmax(z / 4, 1)[0], torch.softmax(-z / 4, 1)[0]
        assert class_divergences(z, -z)["kl_t4"].item() == pytest.approx(entropy(p, q))

    def test_js_of_a_certain_and_an_even_answer(self) -> None:
        found = class_divergences(torch.zeros(1, 2), torch.tensor([[1e4, -1e4]]))
        assert found["js"].item() == pytest.approx(0.215762, abs=1e-6)
        assert found["js"].sqrt().item() == pytest.approx(jensenshannon((0.5, 0.5), (1, 0)))

    def test_identical_models_do_not_diverge(self) -> None:
        z = torch.randn(6, 4)
        found = class_divergences(z, z)
        assert tuple(found) == DIVERGENCES
        assert found["agree"].tolist() == [1.0] * 6
        assert all(found[name].abs().max() < 1e-12 for name in DIVERGENCES if name not in ("agree",))

    @pytest.mark.parametrize("scale", [1.0, 1e4])
    def test_bounds_and_symmetry(self, scale: float) -> None:
        a, b = torch.randn(50, 3) * scale, torch.randn(50, 3) * scale
        found, swapped = class_divergences(a, b), class_divergences(b, a)
        assert torch.allclose(found["js"], swapped["js"], atol=1e-12)
        assert found["js"].min() >= 0
        assert found["js"].max() <= math.log(2) + 1e-9
        assert found["actdist"].max() <= math.sqrt(2) + 1e-9
        assert found["kl"].min() >= 0

    def test_a_model_that_is_not_finite_gives_nan(self) -> None:
        found = class_divergences(torch.tensor([[torch.nan, 0.0]]), torch.zeros(1, 2))
        assert all(math.isnan(v.item()) for v in found.values())
