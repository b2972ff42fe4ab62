"""Local SGD: equal to a plain torch loop, reproducible, and never silently wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from clients.catalogue import TASKS
from clients.site import Site
from clients.training import LocalPlan, LocalResult, batch_order, train_locally
from partitions.errors import BadInput
from unlearning.state import State, distance

MakeSite = Callable[..., Site]
Initial = Callable[..., State]


def trained(site: Site, state: State, **plan: object) -> LocalResult:
    values = {"lr": 0.05, "epochs": 2, "seed": 7, "batch_size": 8}
    return train_locally(site.worker, state, site.train, site.train.indices, LocalPlan(**{**values, **plan}))  # type: ignore[arg-type]


class TestBatchOrder:
    def test_every_epoch_has_every_record_once_in_a_new_order(self) -> None:
        order = batch_order(20, 2, 8, "merge", seed=3)
        assert [len(b) for b in order] == [8, 8, 4] * 2
        first, second = np.concatenate(order[:3]), np.concatenate(order[3:])
        assert sorted(first) == sorted(second) == list(range(20))
        assert first.tolist() != second.tolist()

    def test_it_depends_on_the_seed_alone(self) -> None:
        def flat(seed: int) -> list[int]:
            return np.concatenate(batch_order(20, 1, 8, "keep", seed)).tolist()  # type: ignore[no-any-return]

        assert flat(3) == flat(3) != flat(4)

    @pytest.mark.parametrize(("last_batch", "sizes"), [("merge", [8, 9]), ("drop", [8, 8]), ("keep", [8, 8, 1])])
    def test_a_last_batch_of_one(self, last_batch: str, sizes: list[int]) -> None:
        assert [len(b) for b in batch_order(17, 1, 8, last_batch, 0)] == sizes  # type: ignore[arg-type]

    def test_dropping_does_not_move_the_other_batches(self) -> None:
        kept, dropped = batch_order(17, 2, 8, "keep", 0), batch_order(17, 2, 8, "drop", 0)
        assert [b.tolist() for b in kept if len(b) > 1] == [b.tolist() for b in dropped]

    @pytest.mark.parametrize("last_batch", ["merge", "drop", "keep"])
    def test_the_only_record_is_never_dropped(self, last_batch: str) -> None:
        assert [b.tolist() for b in batch_order(1, 2, 8, last_batch, 0)] == [[0], [0]]  # type: ignore[arg-type]

    @pytest.mark.parametrize("last_batch", ["merge", "drop", "keep"])
    def test_batches_of_one_by_wish_stay(self, last_batch: str) -> None:
        assert len(batch_order(3, 1, 1, last_batch, 0)) == 3  # type: ignore[arg-type]

    def test_no_records_no_batches(self) -> None:
        assert batch_order(0, 3, 8, "merge", 0) == []


def plain_loop(model: nn.Module, site: Site, precision: str = "32-true") -> State:
    """The same work in plain torch, from nothing but arrays, initial weights and the batch order."""
    torch.set_num_threads(1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    model.train().to(memory_format=torch.channels_last)
    for batch in batch_order(len(site.train), 2, 8, "merge", 7):
        x = (
            TASKS.get("classification")
            .to_inputs(site.train.inputs[batch])
            .contiguous(memory_format=torch.channels_last)
        )
        sgd.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            outputs = model(x)
        cross_entropy(outputs.float(), torch.from_numpy(site.train.targets[batch])).backward()
        sgd.step()
    return State.from_module(model)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("network", ["cnn", "resnet18"])
def test_it_is_bit_equal_to_a_plain_torch_loop(
    make_site: MakeSite, initial: Initial, network: str, precision: str
) -> None:
    site, state = make_site(train=12, model=network, precision=precision), initial(network)
    torch.manual_seed(0)
    model = TASKS.get("classification").build(network, (10, 10), 3)
    state.load_into(model)
    ours = trained(site, state, momentum=0.9, weight_decay=1e-3).state
    assert ours.sha256() == plain_loop(model, site, precision).sha256()
    assert distance(ours, state) > 0.01


@pytest.mark.parametrize("network", ["cnn", "resnet18"])
def test_it_is_the_same_after_other_work_in_the_same_process(
    make_site: MakeSite, initial: Initial, network: str
) -> None:
    site, state = make_site(train=10, model=network), initial(network)
    first = trained(site, state, momentum=0.9)
    trained(make_site(train=8, model=network, seed=4), initial(network, seed=1), epochs=1, lr=0.5, seed=99)
    again = trained(site, state, momentum=0.9)
    assert first.state.sha256() == again.state.sha256()
    assert (first.loss, first.metric) == (again.loss, again.metric)


def test_the_state_it_starts_from_is_not_changed(make_site: MakeSite, initial: Initial) -> None:
    state = initial()
    before = state.sha256()
    trained(make_site(), state)
    assert state.sha256() == before


def test_another_seed_gives_another_order_and_other_weights(make_site: MakeSite, initial: Initial) -> None:
    site, state = make_site(), initial()
    assert trained(site, state).state.sha256() != trained(site, state, seed=8).state.sha256()


def test_a_rate_of_zero_is_the_identity(make_site: MakeSite, initial: Initial) -> None:
    state = initial()
    assert trained(make_site(), state, lr=0.0, weight_decay=0.1, momentum=0.9).state.sha256() == state.sha256()


def test_it_learns(make_site: MakeSite, initial: Initial) -> None:
    site, state = make_site(train=60), initial()
    first, later = trained(site, state, epochs=1), trained(site, state, epochs=20)
    assert later.loss < first.loss
    assert later.metric > 0.8 > first.metric


def test_it_reports_what_it_did(make_site: MakeSite, initial: Initial) -> None:
    done = trained(make_site(train=17), initial(), epochs=3)
    assert (done.num_examples, done.num_batches, done.status, done.reason) == (17, 6, "ok", "")
    assert done.seconds > 0


def test_the_loss_is_the_mean_over_steps_before_each_step(make_site: MakeSite, initial: Initial) -> None:
    site, state = make_site(train=16), initial()
    done = trained(site, state, epochs=1, lr=0.0)
    model = TASKS.get("classification").build("cnn", (10, 10), 3)
    state.load_into(model)
    x = TASKS.get("classification").to_inputs(site.train.inputs[:16])
    with torch.no_grad():
        expected = cross_entropy(model(x), torch.from_numpy(site.train.targets[:16])).item()
    assert done.loss == pytest.approx(expected, rel=1e-5)


def test_clipping_bounds_the_step(make_site: MakeSite, initial: Initial) -> None:
    state = initial()
    done = trained(make_site(train=8), state, epochs=1, lr=1.0, max_norm=1e-3)
    assert distance(done.state, state) == pytest.approx(1e-3, rel=1e-3)


def test_the_proximal_term_is_fedprox(make_site: MakeSite, initial: Initial) -> None:
    site, state = make_site(train=8), initial()
    free = trained(site, state, epochs=1, prox_mu=0.0)
    first = trained(site, state, epochs=1, prox_mu=50.0)
    assert first.state.sha256() == free.state.sha256()  # the first step starts where the pull is zero
    steps = [trained(site, state, epochs=20, lr=0.01, prox_mu=mu) for mu in (0.0, 50.0)]
    assert distance(steps[1].state, state) < 0.5 * distance(steps[0].state, state)


def test_the_proximal_gradient_is_mu_times_the_distance(make_site: MakeSite, initial: Initial) -> None:
    site, state = make_site(train=8), initial()
    name = "0.weight"
    one = trained(site, state, epochs=1, lr=0.01).state.params[name]
    plain = trained(site, state, epochs=2, lr=0.01).state.params[name]
    pulled = trained(site, state, epochs=2, lr=0.01, prox_mu=3.0).state.params[name]
    assert torch.allclose(pulled - plain, -0.01 * 3.0 * (one - state.params[name]), atol=1e-7)


class TestNotFinite:
    def test_weights_that_are_not_finite_are_told(self, make_site: MakeSite, initial: Initial) -> None:
        done = trained(make_site(), initial(), lr=1e30, epochs=3)
        assert done.status == "not-finite"
        assert "step" in done.reason
        assert done.num_batches < 12

    def test_a_nan_in_the_state_received_is_told_at_the_first_step(self, make_site: MakeSite, initial: Initial) -> None:
        state = initial()
        state.params["0.bias"][0] = torch.nan
        done = trained(make_site(), state)
        assert (done.status, done.num_batches) == ("not-finite", 0)
        assert done.reason == "the loss of step 1 is nan"

    def test_weights_that_break_at_the_very_last_step_are_told(self, make_site: MakeSite, initial: Initial) -> None:
        done = trained(make_site(train=8), initial(), lr=3e38, epochs=1, weight_decay=1e6)
        assert (done.status, done.num_batches) == ("not-finite", 1)
        assert "weights after step 1" in done.reason

    def test_the_next_training_in_the_process_is_not_affected(self, make_site: MakeSite, initial: Initial) -> None:
        site, state = make_site(), initial()
        clean = trained(site, state).state.sha256()
        trained(site, state, lr=1e30)
        assert trained(site, state).state.sha256() == clean


class TestBatchNorm:
    def test_a_single_record_trains_and_leaves_the_statistics(self, make_site: MakeSite, initial: Initial) -> None:
        state = initial("resnet18")
        done = trained(make_site(train=1, model="resnet18"), state, epochs=1)
        assert (done.status, done.num_batches) == ("ok", 1)
        assert torch.equal(done.state.float_buffers["bn1.running_mean"], state.float_buffers["bn1.running_mean"])
        assert int(done.state.int_buffers["bn1.num_batches_tracked"]) == 0
        assert distance(done.state, state) > 0

    def test_statistics_move_with_full_batches_and_stay_valid(self, make_site: MakeSite, initial: Initial) -> None:
        done = trained(make_site(train=17, model="resnet18"), initial("resnet18"), epochs=1)
        assert int(done.state.int_buffers["bn1.num_batches_tracked"]) == 2
        assert done.state.int_buffers["bn1.num_batches_tracked"].shape == ()
        assert all((t >= 0).all() for n, t in done.state.float_buffers.items() if n.endswith("running_var"))


class TestPrecision:
    def test_bf16_is_near_fp32_and_not_equal(self, make_site: MakeSite, initial: Initial) -> None:
        state = initial()
        full, half = (trained(make_site(precision=p), state) for p in ("32-true", "bf16-mixed"))
        assert half.state.sha256() != full.state.sha256()
        assert half.loss == pytest.approx(full.loss, rel=0.02)

    def test_64_bit_computes_its_loss_in_64_bits(self, make_site: MakeSite, initial: Initial) -> None:
        site = make_site(precision="64-true")
        seen = []
        model = site.worker.load(initial(dtype=torch.float64))
        with site.worker.computing(0):
            x, y = site.worker.batch(site.train.inputs, site.train.targets, np.arange(4))
            seen.append(site.worker.task.loss(model, x, y))
        assert seen[0].dtype == torch.float64
        assert torch.get_default_dtype() == torch.float32

    def test_the_weights_are_64_bits_wide_and_use_them(self, make_site: MakeSite, initial: Initial) -> None:
        state = initial(dtype=torch.float64)
        weight = trained(make_site(precision="64-true"), state).state.params["0.weight"]
        assert weight.dtype == torch.float64
        assert not torch.equal(weight, weight.float().double())

    def test_the_loss_is_taken_in_fp32_under_bf16(self, make_site: MakeSite, initial: Initial) -> None:
        site = make_site(precision="bf16-mixed")
        model = site.worker.load(initial())
        x, y = site.worker.batch(site.train.inputs, site.train.targets, np.arange(4))
        assert site.worker.task.loss(model, x, y).dtype == torch.float32


class TestPartlyTrainable:
    """Some of a model trains, the rest stays as it is, to the bit."""

    def train(self, site: Site, state: State, masks: dict[str, torch.Tensor], **plan: object) -> State:
        values = {"lr": 0.05, "epochs": 2, "seed": 7, "batch_size": 8, "momentum": 0.9, "weight_decay": 0.1, **plan}
        made = LocalPlan(**values)  # type: ignore[arg-type]
        return train_locally(site.worker, state, site.train, site.train.indices, made, masks).state

    def test_what_is_not_named_and_what_is_masked_stays(self, make_site: MakeSite, initial: Initial) -> None:
        site, state = make_site(), initial()
        half = torch.zeros(state.params["0.weight"].shape, dtype=torch.bool)
        half[:16] = True
        after = self.train(site, state, {"0.weight": half, "9.weight": torch.tensor(True)})
        assert torch.equal(after.params["0.weight"][16:], state.params["0.weight"][16:])
        assert not torch.equal(after.params["0.weight"][:16], state.params["0.weight"][:16])
        changed = {name for name, tensor in after.params.items() if not torch.equal(tensor, state.params[name])}
        assert changed == {"0.weight", "9.weight"}

    def test_masks_of_nothing_but_true_change_nothing(self, make_site: MakeSite, initial: Initial) -> None:
        site, state = make_site(), initial()
        everything = dict.fromkeys(state.params, torch.tensor(True))
        plan = {"momentum": 0.0, "weight_decay": 0.0}
        masked = self.train(site, state, everything, **plan)
        assert masked.sha256() == trained(site, state).state.sha256()

    def test_statistics_of_held_layers_stay(self, make_site: MakeSite) -> None:
        site = make_site(model="resnet18")
        torch.manual_seed(0)
        state = State.from_module(TASKS.get("classification").build("resnet18", (10, 10), 3))
        after = self.train(site, state, {"fc.weight": torch.tensor(True), "bn1.bias": torch.tensor(True)}, epochs=1)
        moved = {n for n, t in after.float_buffers.items() if not torch.equal(t, state.float_buffers[n])}
        assert moved == {"bn1.running_mean", "bn1.running_var"}

    def test_the_next_training_is_whole_again(self, make_site: MakeSite, initial: Initial) -> None:
        site, state = make_site(), initial()
        before = trained(site, state).state.sha256()
        self.train(site, state, {"0.weight": torch.tensor(True)})
        assert trained(site, state).state.sha256() == before

    def test_a_name_the_model_lacks_is_refused(self, make_site: MakeSite, initial: Initial) -> None:
        with pytest.raises(BadInput, match="nonsense"):
            self.train(make_site(), initial(), {"nonsense": torch.tensor(True)})
