"""FedCARE at the server: whom each reference asks, what is remembered of a gradient, and the recovery it hooks into."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from fake_sites import Hospitals, counts, federation, plan, schedule, start_state

from partitions.errors import BadInput
from strategies.events import EventSink
from strategies.fedcare import METHOD
from strategies.history import HistoryWriter
from strategies.plans import RequestPlan, SiteCounts
from strategies.recovery import run_recovery
from strategies.roster import Roster
from strategies.wire import CallParts
from unlearning.state import State

SHARED = {"site-a": (10, 0), "site-b": (5, 15), "site-c": (0, 30), "site-d": (20, 20)}


def class_request(text: str = "class:1") -> RequestPlan:
    return RequestPlan(text, 0, "class", (), {site: SiteCounts(*c) for site, c in SHARED.items()})


def answer(site: str, op: str, call: CallParts):
    """Answer the gradient op with a gradient that names the site, and the ascent op with a reference loss."""
    if op == "retained_gradient":
        value = float(ord(site[-1]) - ord("a")) + 0.25 * call.config["round"]
        arrays = {name: np.full(tensor.shape, value, np.float32) for name, tensor in call.state.params.items()}
        return lambda parts: {**{k: v for k, v in parts.items() if k != "state"}, "arrays": {"gradient": arrays}}
    loss = 0.75 if site == "site-b" else 0.25
    return lambda parts: {**parts, "metrics": {**parts["metrics"], "reference-loss": loss}}


def made(fed, request=None, held: Mapping | None = None, work=None, epochs: int = 2, **overrides):
    config = METHOD.resolve_config("lethe", {k.replace("_", "-"): v for k, v in overrides.items()})
    request = request or plan(held or counts())
    return METHOD(fed, schedule(unlearn_epochs=epochs), request, seed=7, config=config, work=work)


def test_by_default_the_forget_holders_ascend_once_on_forget_records_alone() -> None:
    fed = federation(Hospitals(SHARED, interfere=answer))
    outcome = made(fed, class_request()).run(start_state())
    assert outcome.rounds == 1
    asked = {(site, kind, call.config["records"], call.config["epochs"]) for site, kind, call in fed.grid.calls()}
    assert asked == {(f"site-{s}", "train.ascend_beside", "forget", 2) for s in "abd"}


def test_pseudo_images_that_the_model_is_unsure_of_are_remarked() -> None:
    fed = federation(Hospitals(SHARED, interfere=answer))
    notes = made(fed, class_request()).run(start_state()).notes
    assert len(notes) == 1 and "site-b" in notes[0] and "0.75" in notes[0]


@pytest.mark.parametrize(("text", "classes"), [("class:1", ["0", "2", "10"]), ("class:2>class:1", ["0", "10"])])
def test_the_classes_to_invert_are_those_that_stay(text: str, classes: list[str]) -> None:
    fed = federation(Hospitals(SHARED, interfere=answer))
    held = {"site-a": '{"7": 3}', "site-b": '{"0": 4, "1": 2}', "site-c": '{"10": 1, "2": 9}', "site-d": '{"1": 5}'}
    fed.roster = Roster(fed.roster.nodes, {site: {"class-counts": counts} for site, counts in held.items()})
    made(fed, class_request(text)).run(start_state())
    assert {tuple(call.config["classes"]) for _, _, call in fed.grid.calls()} == {tuple(classes)}


def test_the_retained_reference_asks_holders_that_keep_records_and_names_the_others() -> None:
    fed = federation(Hospitals(SHARED, interfere=answer))
    outcome = made(fed, class_request(), ref="retain").run(start_state())
    assert {(site, call.config["records"]) for site, _, call in fed.grid.calls()} == {
        ("site-b", "both"),
        ("site-d", "both"),
    }
    assert any("site-a" in note for note in outcome.notes)


def test_the_retained_reference_is_refused_where_no_holder_keeps_a_record() -> None:
    with pytest.raises(BadInput, match="server-grad"):
        made(federation(Hospitals(counts())), ref="retain").run(start_state())


class TestServerGradient:
    def test_each_epoch_begins_with_the_mean_gradient_of_the_sites_that_stay(self) -> None:
        fed = federation(Hospitals(counts(), interfere=answer))
        assert made(fed, ref="server-grad").run(start_state()).rounds == 4
        kinds = [(site, kind.split(".")[1], call.config["round"]) for site, kind, call in fed.grid.calls()]
        expected = []
        for epoch in (0, 1):
            expected += [(f"site-{s}", "retained_gradient", 2 * epoch + 1) for s in "bcd"]
            expected += [("site-a", "ascend_beside", 2 * epoch + 2)]
        assert kinds == expected
        ascents = [call for _, kind, call in fed.grid.calls() if kind.endswith("ascend_beside")]
        assert {call.config["epochs"] for call in ascents} == {1}
        for round_, call in zip((1, 3), ascents, strict=True):
            mean = (20 * 1 + 30 * 2 + 40 * 3) / 90 + 0.25 * round_
            for tensor in call.states["reference"].params.values():
                torch.testing.assert_close(tensor, torch.full_like(tensor, mean))

    def test_a_gradient_round_moves_nothing_and_shares_by_retained_records(self, tmp_path) -> None:
        work = HistoryWriter(tmp_path)
        made(federation(Hospitals(counts(), interfere=answer)), work=work, ref="server-grad").run(start_state())
        history = work.read()
        assert history.before(1).sha256() == history.after(1).sha256() != history.after(2).sha256()
        assert history.record(1).sites["site-b"].weight == pytest.approx(20 / 90)

    @pytest.mark.parametrize("done", [1, 2, 3])
    def test_a_killed_run_takes_up_the_gradient(self, tmp_path, done: int) -> None:
        class Dying(EventSink):
            def emit(self, kind, **fields):
                if kind == "round-started" and fields["round"] > done:
                    raise KeyboardInterrupt

        # The ascent must depend on the gradient for this to show anything.
        def using(site, op, call):
            if op == "retained_gradient":
                return answer(site, op, call)
            shift = float(call.states["reference"].params["scale"])
            return lambda parts: {**parts, "state": _shifted(parts["state"], shift)}

        def one(work=None, events=None):
            fed = federation(Hospitals(counts(), interfere=using), events=events)
            return made(fed, work=work, ref="server-grad")

        whole = one().run(start_state())
        with pytest.raises(KeyboardInterrupt):
            one(HistoryWriter(tmp_path), Dying(None)).run(start_state())
        assert one(HistoryWriter(tmp_path)).run(start_state()).state.sha256() == whole.state.sha256()


def _shifted(state: State, by: float) -> State:
    return State({n: t + by for n, t in state.params.items()}, state.float_buffers, state.int_buffers)


class TestRecovery:
    def recovered(self, kappa: float | None) -> tuple[State, State, State]:
        fed, request = federation(Hospitals(counts())), plan(counts())
        start = start_state()
        unlearned = _shifted(start, 2.0)
        hook = None if kappa is None else made(fed, kappa=kappa).recovery_hook(start, unlearned)
        end = run_recovery(fed, schedule(), request, unlearned, seed=7, work=None, hook=hook).state
        return start, unlearned, end

    def test_without_suppression_it_is_the_shared_recovery_bit_for_bit(self) -> None:
        assert self.recovered(0.0)[2].sha256() == self.recovered(None)[2].sha256()

    def test_no_motion_back_survives_where_the_shared_recovery_goes_back(self) -> None:
        def back(kappa: float | None) -> float:
            start, unlearned, end = self.recovered(kappa)
            return sum(
                float(((end.params[n] - unlearned.params[n]) * (start.params[n] - unlearned.params[n])).sum())
                for n in start.params
            )

        assert back(None) > 1.0
        assert back(1.0) < 1e-5
        assert 1e-5 < back(0.5) < back(None)

    def test_buffers_are_the_shared_recoverys(self) -> None:
        shared, ours = self.recovered(None)[2], self.recovered(1.0)[2]
        for name, tensor in shared.float_buffers.items():
            assert torch.equal(ours.float_buffers[name], tensor)
