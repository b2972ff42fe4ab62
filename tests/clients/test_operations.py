"""What a site answers to each operation, and what it says when it cannot."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from clients.catalogue import OPERATIONS, TASKS
from clients.ops import Call, Reply
from clients.site import Site
from clients.training import LocalPlan, batch_order, train_locally
from partitions.errors import BadInput, RunFailed
from partitions.seeds import derive_seed
from unlearning.fedquit import distil
from unlearning.state import State, distance

MakeSite = Callable[..., Site]
Initial = Callable[..., State]
TRAIN = {"seed": 3, "lr": 0.05, "epochs": 1, "round": 2}
FORGET = {**TRAIN, "request": "class:1", "request-seed": 0}


def ask(
    site: Site, op: str, state: State | None = None, states: dict[str, State] | None = None, **config: object
) -> Reply:
    hyphened = {key.replace("_", "-"): value for key, value in config.items()}
    return OPERATIONS.get(op).run(site, Call(op, state, hyphened, states or {}))


def test_every_operation_is_there_and_can_be_a_message_type() -> None:
    kinds = {name: OPERATIONS.get(name).category for name in OPERATIONS.names()}
    assert (
        kinds.items()
        >= {
            "describe": "query",
            "select": "query",
            "train": "train",
            "recover": "train",
            "ascend": "train",
            "distil": "train",
            "scorecard": "evaluate",
        }.items()
    )
    assert all(name.isidentifier() for name in kinds)


def test_describe_and_select_answer_in_config(make_site: MakeSite) -> None:
    site = make_site()
    assert ask(site, "describe").config == site.describe()
    found = ask(site, "select", request="class:1", request_seed=4).config
    assert found == {"site": "site-0", **site.selection_summary("class:1", 4)}


class TestTrain:
    def test_it_is_local_training_on_a_derived_seed(self, make_site: MakeSite, initial: Initial) -> None:
        site, state = make_site(momentum=0.9, weight_decay=1e-3), initial()
        reply = ask(site, "train", state, **TRAIN)
        plan = LocalPlan(
            lr=0.05,
            epochs=1,
            seed=derive_seed(3, "train", "site-0", 2),
            batch_size=8,
            momentum=0.9,
            weight_decay=1e-3,
        )
        expected = train_locally(site.worker, state, site.train, site.train.indices, plan)
        assert reply.state is not None
        assert reply.state.sha256() == expected.state.sha256()

    def test_the_reply_counts_and_says_where(
        self, make_site: MakeSite, initial: Initial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        reply = ask(make_site(), "train", initial(), **{**FORGET, "epochs": 2})
        site = make_site()
        forget = int((site.train.targets[:30] == 1).sum())
        assert {
            k: reply.metrics[k] for k in ("num-examples", "num-forget", "num-retain", "num-batches", "examples")
        } == {
            "num-examples": 30,
            "num-forget": forget,
            "num-retain": 30 - forget,
            "num-batches": 8,
            "examples": 60,
        }
        assert all(math.isfinite(reply.metrics[k]) for k in ("loss", "metric", "seconds"))
        assert reply.config == {"site": "site-0", "device": "cpu", "gpu": "1", "status": "ok", "reason": ""}

    @pytest.mark.parametrize("op", ["train", "recover"])
    def test_records_retain_never_touches_a_forget_record(self, make_site: MakeSite, initial: Initial, op: str) -> None:
        site, spied = make_site(), make_site()
        reply = ask(site, op, initial(), records="retain", **FORGET)
        spied.train.inputs[spied.records("forget", "class:1", 0)] = 255
        again = ask(spied, op, initial(), records="retain", **FORGET)
        assert reply.state is not None and again.state is not None
        assert reply.state.sha256() == again.state.sha256()
        assert reply.metrics["num-examples"] == reply.metrics["num-retain"] < 30

    def test_rounds_purposes_and_sites_have_their_own_order(self, make_site: MakeSite, initial: Initial) -> None:
        def result(name: str = "site-0", **changes: object) -> str:
            state = ask(make_site(name=name), "train", initial(), **{**TRAIN, **changes}).state
            assert state is not None
            return state.sha256()

        assert result() == result()
        assert len({result(), result(round=3), result(purpose="recovery"), result(seed=4), result(name="site-1")}) == 5

    def test_nothing_selected_means_no_state_and_no_examples(self, make_site: MakeSite, initial: Initial) -> None:
        reply = ask(make_site(), "train", initial(), records="retain", request="client:site-0", **TRAIN)
        assert reply.state is None
        assert (reply.metrics["num-examples"], reply.metrics["num-batches"]) == (0, 0)
        assert reply.config["status"] == "ok"

    def test_a_result_that_is_not_finite_is_reported_not_hidden(self, make_site: MakeSite, initial: Initial) -> None:
        reply = ask(make_site(), "train", initial(), **{**TRAIN, "lr": 1e30})
        assert reply.config["status"] == "not-finite"
        assert "step" in str(reply.config["reason"])

    def test_a_missing_key_is_named(self, make_site: MakeSite, initial: Initial) -> None:
        with pytest.raises(BadInput, match="lr=None"):
            ask(make_site(), "train", initial(), seed=0, epochs=1)

    def test_a_missing_model_is_named(self, make_site: MakeSite) -> None:
        with pytest.raises(BadInput, match="a message with a model"):
            ask(make_site(), "train", **TRAIN)

    def test_too_little_gpu_memory_names_site_batch_and_remedy(
        self, make_site: MakeSite, initial: Initial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise torch.cuda.OutOfMemoryError("tried to allocate 2 GiB")

        monkeypatch.setattr("clients.ops.train_locally", full)
        with pytest.raises(RunFailed, match=r"site-0 ran out of memory .* batch-size=8: let fewer workers"):
            ask(make_site(), "train", initial(), **TRAIN)


class TestAscend:
    def test_the_forget_loss_rises(self, make_site: MakeSite, initial: Initial) -> None:
        site = make_site()
        first = ask(site, "ascend", initial(), **FORGET)
        later = ask(site, "ascend", first.state, **FORGET)
        assert later.metrics["loss"] > first.metrics["loss"]
        assert first.metrics["num-examples"] == first.metrics["num-forget"]

    def test_only_forget_records_are_read(self, make_site: MakeSite, initial: Initial) -> None:
        site, spied = make_site(), make_site()
        spied.train.inputs[spied.records("retain", "class:1", 0)] = 255
        a, b = (ask(s, "ascend", initial(), **FORGET).state for s in (site, spied))
        assert a is not None and b is not None
        assert a.sha256() == b.sha256()

    def test_without_a_clip_it_diverges_to_a_usable_state(self, make_site: MakeSite, initial: Initial) -> None:
        reply = ask(make_site(), "ascend", initial(), **{**FORGET, "lr": 50.0, "epochs": 5})
        assert reply.config["status"] == "diverged"
        assert reply.config["reason"]
        assert reply.state is not None
        assert reply.state.is_finite()

    def test_a_clip_holds_it(self, make_site: MakeSite, initial: Initial) -> None:
        state = initial()
        reply = ask(make_site(), "ascend", state, max_norm=1e-3, **{**FORGET, "lr": 1.0})
        assert reply.config["status"] == "ok"
        assert reply.state is not None
        assert distance(reply.state, state) <= reply.metrics["num-batches"] * 1e-3 * 1.001

    @pytest.mark.parametrize(("bn_mode", "moves"), [("eval", False), ("train", True)])
    def test_statistics_are_frozen_unless_asked(
        self, make_site: MakeSite, initial: Initial, bn_mode: str, moves: bool
    ) -> None:
        state = initial("resnet18")
        site = make_site(train=12, model="resnet18")
        reply = ask(site, "ascend", state, bn_mode=bn_mode, **{**FORGET, "lr": 1e-4})
        assert reply.state is not None
        name = "bn1.running_mean"
        assert torch.equal(reply.state.float_buffers[name], state.float_buffers[name]) != moves

    @pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
    def test_it_runs_in_other_precisions(self, make_site: MakeSite, initial: Initial, precision: str) -> None:
        dtype = torch.float64 if precision == "64-true" else torch.float32
        reply = ask(make_site(precision=precision), "ascend", initial(dtype=dtype), **FORGET)
        assert reply.config["status"] == "ok"


class TestDistil:
    def test_the_true_class_loses_probability(self, make_site: MakeSite, initial: Initial) -> None:
        site = make_site(train=60)
        learnt = ask(site, "train", initial(), **{**TRAIN, "epochs": 10}).state
        reply = ask(site, "distil", learnt, temperature=4.0, scale_t2=False, **{**FORGET, "epochs": 10})
        assert reply.config["status"] == "ok"
        before, after = (ask(site, "scorecard", s, **FORGET).tables["scorecard"] for s in (learnt, reply.state))
        assert after[after.selected].loss.mean() > before[before.selected].loss.mean() + 0.5

    def test_a_rate_of_zero_changes_nothing(self, make_site: MakeSite, initial: Initial) -> None:
        state = initial()
        reply = ask(make_site(), "distil", state, **{**FORGET, "lr": 0.0})
        assert reply.state is not None
        assert reply.state.sha256() == state.sha256()

    def test_settings_reach_the_method(self, make_site: MakeSite, initial: Initial) -> None:
        def result(**own: object) -> str:
            state = ask(make_site(), "distil", initial(), **FORGET, **own).state
            assert state is not None
            return state.sha256()

        assert result() == result(temperature=4.0, scale_t2=False, optimizer="sgd", bn_mode="train")
        assert len({result(), result(temperature=1.0), result(scale_t2=True), result(optimizer="adam")}) == 4

    def test_student_and_teacher_are_the_model_received(self, make_site: MakeSite, initial: Initial) -> None:
        site, state = make_site(channels_last=False), initial()
        ask(site, "distil", initial(seed=8), **FORGET)
        reply = ask(site, "distil", state, **FORGET)
        student, teacher = (TASKS.get("classification").build("cnn", (10, 10), 3) for _ in range(2))
        state.load_into(student)
        state.load_into(teacher)
        indices = site.records("forget", "class:1", 0)
        order = batch_order(len(indices), 1, 8, "merge", derive_seed(3, "train", "site-0", 2))
        loaded = [site.worker.batch(site.train.inputs, site.train.targets, indices[batch]) for batch in order]
        distil(student, teacher, [loaded], temperature=4.0, scale_t2=False, lr=0.05)
        assert reply.state is not None
        assert distance(reply.state, State.from_module(student)) < 1e-6 < distance(reply.state, state)


class TestScores:
    def test_the_scorecard_of_a_request(self, make_site: MakeSite, initial: Initial) -> None:
        reply = ask(make_site(), "scorecard", initial(), request="class:1", request_seed=0)
        table = reply.tables["scorecard"]
        assert reply.metrics["num-examples"] == len(table) == 38
        assert table["selected"].any()
        assert reply.state is None

    def test_the_comparison_with_another_model(self, make_site: MakeSite, initial: Initial) -> None:
        other = {"other": initial(seed=1)}
        reply = ask(make_site(), "scorecard", initial(), other, request="class:1", request_seed=0)
        assert (reply.tables["comparison"]["kl"] > 0).all()
        assert list(ask(make_site(), "scorecard", initial()).tables) == ["scorecard"]

    def test_the_scores_of_forgotten_records_alone_read_no_other(self, make_site: MakeSite, initial: Initial) -> None:
        site, spied = make_site(), make_site()
        spied.train.inputs[spied.train.targets != 1] = 255  # holdout is in the same array
        whole = ask(site, "scorecard", initial(), request="class:1", request_seed=0).tables["scorecard"]
        reply = ask(spied, "forgotten", initial(), request="class:1", request_seed=0)
        table, expected = reply.tables["scorecard"], whole[whole["selected"]].reset_index(drop=True)
        told = [name for name in whole.columns if whole[name].dtype.kind != "f"]
        assert table[told].equals(expected[told])
        assert set(table["split"]) == {"train", "holdout"}
        for name in ("metric", "loss", "phi"):
            assert table[name].to_numpy() == pytest.approx(expected[name].to_numpy(), rel=1e-5, abs=1e-5)
        assert reply.metrics["num-examples"] == len(table)
        assert reply.state is None

    def test_a_site_without_forgotten_records_has_no_row(self, make_site: MakeSite, initial: Initial) -> None:
        table = ask(make_site(), "forgotten", initial(), request="client:site-9", request_seed=0).tables["scorecard"]
        assert len(table) == 0
        assert "loss" in table
