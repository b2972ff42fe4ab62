"""What a round can ask and get besides models: further models, statistics, remarks, its own weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake_sites import Hospitals, counts, federation, start_state

from partitions.errors import RunFailed
from strategies.history import HistoryWriter
from strategies.rounds import Ask, Merged, RecordedRounds
from unlearning.state import State

NPY_HEADER = 128
CONFIG = {"records": "all", "request": "", "seed": 0, "purpose": "x", "round": 1, "epochs": 1, "lr": 0.1}


class Survey(RecordedRounds):
    """Asks for sums and adds them to the model."""

    ask = Ask("survey", tuple(counts()), CONFIG, states={"mask": State({"w": torch.tensor([True, False])}, {}, {})})

    def ask_for(self, round_):
        return self.ask

    def merge(self, round_, state, contributions):
        self.seen = list(contributions)
        total = sum(c.arrays["sums"]["w"] for c in contributions if c.arrays)
        after = State({**state.params, "w": state.params["w"] + total}, state.float_buffers, state.int_buffers)
        return Merged(after, remarks=("counted",))


def statistics(value: float = 1.0):
    def interfere(site, op, call):
        def change(parts):
            arrays = {"sums": {"w": np.full(3, value, np.float32)}}
            return {"metrics": parts["metrics"], "config": parts["config"], "arrays": arrays}

        return change if op == "survey" else None

    return interfere


def test_sites_may_answer_with_statistics_and_no_model(tmp_path):
    fed = federation(Hospitals(counts(), statistics()))
    outcome = (survey := Survey(fed, work=HistoryWriter(tmp_path), stage="s", label="s")).run_rounds(start_state(), 1)
    assert torch.equal(outcome.state.params["w"], start_state().params["w"] + 4)
    assert all(c.update is None and c.record.status == "ok" and c.metrics["num-examples"] for c in survey.seen)
    assert outcome.cost.bytes_up == 4 * (3 * 4 + NPY_HEADER) and outcome.notes == ("counted",)
    again = Survey(fed, work=HistoryWriter(tmp_path), stage="s", label="s").run_rounds(start_state(), 1)
    assert again.notes == ("counted",) and again.state.sha256() == outcome.state.sha256()


def test_statistics_that_are_not_finite_are_rejected():
    fed = federation(Hospitals(counts(), statistics(float("nan"))))
    (survey := Survey(fed, work=None, stage="s", label="s")).run_rounds(start_state(), 1)
    assert {c.record.status for c in survey.seen} == {"rejected"} and not any(c.arrays for c in survey.seen)


def test_further_models_go_to_every_site_and_are_counted():
    fed = federation(Hospitals(counts(), statistics()))
    outcome = Survey(fed, work=None, stage="s", label="s").run_rounds(start_state(), 1)
    assert all(call.states["mask"].params["w"].tolist() == [True, False] for _, _, call in fed.grid.calls())
    model = [t for group in vars(start_state()).values() for t in group.values()]
    assert outcome.cost.bytes_down == 4 * (sum(t.nbytes + NPY_HEADER for t in model) + 2 + NPY_HEADER)


class Weighed(RecordedRounds):
    """Averages by retain records, whatever the strategy says."""

    def ask_for(self, round_):
        return Ask("train", self.federation.sites, CONFIG, weight_key="num-retain")


def test_a_round_may_weigh_by_another_count_and_leaves_out_who_has_none():
    record = Weighed(federation(Hospitals(counts())), work=None, stage="s", label="s", weight_key="num-forget")
    record.run_rounds(start_state(), 1)
    weights = {site: found.weight for site, found in record._records[0].sites.items()}
    assert weights == pytest.approx({"site-a": 0.0, "site-b": 20 / 90, "site-c": 30 / 90, "site-d": 40 / 90})
    assert record._records[0].sites["site-a"].status == "empty"


def test_nobody_with_a_count_is_an_error():
    held = {"site-a": (10, 0)}
    with pytest.raises(RunFailed, match="no site that was asked"):
        Weighed(federation(Hospitals(held)), work=None, stage="s", label="s").run_rounds(start_state(), 1)
