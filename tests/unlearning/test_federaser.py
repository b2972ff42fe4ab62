"""Oracles of METHODS 1.4 that concern the mathematics; the replay itself is in tests/strategies/test_federaser.py."""

import pytest
import torch

from unlearning.federaser import calibrate, calibration_epochs, mean_update, retained_rounds
from unlearning.state import Update, norm


def update(seed: int, scale: float = 1.0) -> Update:
    generator = torch.Generator().manual_seed(seed)
    params = {"w": torch.randn(4, 3, generator=generator) * scale, "b": torch.randn(3, generator=generator) * scale}
    return Update(params, {"bn.running_mean": torch.randn(3, generator=generator)})


def test_the_calibrated_norm_of_each_tensor_is_the_stored_one():
    stored, calibrated = update(0), calibrate(update(0), update(1), "tensor")
    for name in stored.params:
        stored_norm, found = norm({name: stored.params[name]}), norm({name: calibrated.params[name]})
        assert found == pytest.approx(stored_norm, rel=1e-6)


def test_the_calibrated_norm_of_the_model_is_the_stored_one():
    stored, fresh = update(0), update(1)
    calibrated = calibrate(stored, fresh, "model")
    assert norm(calibrated.params) == pytest.approx(norm(stored.params), rel=1e-6)
    ratio = calibrated.params["w"] / fresh.params["w"]
    assert torch.allclose(ratio, torch.full_like(ratio, float(ratio[0, 0])))


def test_the_direction_is_the_fresh_one():
    fresh, calibrated = update(1), calibrate(update(0), update(1), "tensor")
    cosine = torch.nn.functional.cosine_similarity(calibrated.params["w"].flatten(), fresh.params["w"].flatten(), dim=0)
    assert float(cosine) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("scope", ["tensor", "model"])
@pytest.mark.parametrize("scale", [1e-6, 0.5, 1e6])
def test_a_fresh_update_in_the_stored_direction_gives_the_stored_update(scope, scale):
    calibrated = calibrate(update(0), update(0, scale), scope)
    for name, tensor in update(0).params.items():
        assert torch.allclose(calibrated.params[name], tensor, rtol=1e-5)


def test_a_fresh_update_that_does_not_move_keeps_the_stored_one():
    still = Update({n: torch.zeros_like(t) for n, t in update(0).params.items()}, update(1).float_buffers)
    for scope in ("tensor", "model"):
        calibrated = calibrate(update(0), still, scope)
        assert torch.equal(calibrated.params["w"], update(0).params["w"])


def test_a_stored_update_that_did_not_move_gives_zero():
    still = Update({n: torch.zeros_like(t) for n, t in update(0).params.items()}, {})
    assert not calibrate(still, update(1), "tensor").params["w"].any()
    assert not calibrate(still, still, "tensor").params["w"].any()


def test_float_buffers_are_the_fresh_ones_unscaled():
    calibrated = calibrate(update(0), update(1), "tensor")
    assert torch.equal(calibrated.float_buffers["bn.running_mean"], update(1).float_buffers["bn.running_mean"])


def test_the_mean_of_updates_is_weighted():
    mean = mean_update([update(0), update(1)], [0.25, 0.75])
    expected = 0.25 * update(0).params["w"] + 0.75 * update(1).params["w"]
    assert torch.allclose(mean.params["w"], expected)
    assert mean.params["w"].dtype == torch.float32


def test_calibration_epochs_round_up_and_are_never_zero():
    assert [calibration_epochs(n, 0.5) for n in (1, 2, 3, 5)] == [1, 1, 2, 3]
    assert calibration_epochs(2, 0.1) == 1


def test_every_nth_round_is_retained_from_the_first_on():
    assert retained_rounds([1, 2, 3, 4, 5], 2) == [1, 3, 5]
    assert retained_rounds([2, 3, 4], 1) == [2, 3, 4]
