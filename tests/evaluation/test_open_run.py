"""Facts about a whole run opened for a notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from small_run import SmallRun

from clients.catalogue import TASKS
from evaluation import open_run
from evaluation.runs import Run
from partitions.errors import BadInput
from strategies.history import History
from unlearning.state import State, apply_updates


@pytest.fixture(scope="module")
def run(small_run: SmallRun) -> Run:
    return open_run(small_run.path)


def test_open_run_is_at_the_top_and_costs_nothing_until_asked_for() -> None:
    code = "import sys, evaluation; assert not {'torch', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[2])
    import evaluation

    with pytest.raises(AttributeError, match="no attribute 'shut_run'"):
        evaluation.shut_run  # noqa: B018


def test_opening_a_run_reads_no_tensor(small_run: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("tensors were read")

    monkeypatch.setattr(History, "_tensors", read)
    fresh = open_run("latest", small_run.home)
    assert len(fresh.results) and len(fresh.cells) and len(fresh.rounds) and len(fresh.costs)
    assert fresh.curves.empty or len(fresh.curves)
    assert len(fresh.history("original")) == 3


def test_iterating_over_rounds_holds_one_at_a_time(run: Run) -> None:
    history = run.history("original")
    whole = sum(tensor.nbytes for tensor in history.update(1, "site-0").params.values())
    before = history.bytes_read
    for one in history:
        assert history.bytes_read - before < 2 * whole  # the round before it is read no more
        one.update("site-0")
        before = history.bytes_read
    assert [one.number for one in history] == [1, 2, 3]


def test_a_round_has_its_states_updates_and_weights(run: Run) -> None:
    history = run.history("original")
    for one in history:
        updates = [one.update(site) for site in one.sites]
        after = apply_updates(one.before, updates, list(one.weights.values()))
        assert after.sha256() == one.after.sha256()
        assert sum(one.weights.values()) == pytest.approx(1.0)
    assert history.state(1).sha256() == history.before(2).sha256()
    assert history.state(0).sha256() == history.before(1).sha256()
    assert list(next(iter(history)).frame["site"]) == ["site-0", "site-1", "site-2"]


def test_a_round_without_a_site_averages_the_others(run: Run) -> None:
    one = next(iter(run.history("original")))
    others = [site for site in one.sites if site != "site-1"]
    counts = [one.record.sites[site].num_examples for site in others]
    expected = apply_updates(one.before, [one.update(s) for s in others], [n / sum(counts) for n in counts])
    for name, tensor in one.without("site-1").params.items():
        torch.testing.assert_close(tensor, expected.params[name])
    with pytest.raises(BadInput, match="site-0, site-1, site-2"):
        one.without("site-9")


def test_a_model_is_the_network_with_the_weights_of_its_checkpoint(run: Run) -> None:
    cell = str(run.cells.query("method == 'ga'")["cell"].iloc[0])
    model = run.model(cell, "unlearned")
    assert not model.training
    assert State.from_module(model).sha256() == run.state(cell, "unlearned").sha256()
    last = run.model("ga")
    assert State.from_module(last).sha256() == run.state(cell, "recovered").sha256()
    shape = run.manifest["cells"][0]["network"]["data-shape"]
    records = TASKS.get("classification").to_inputs(np.zeros((2, *shape), dtype=np.uint8))
    with torch.no_grad():
        assert last(records).shape == (2, 10)


def test_the_model_after_the_last_round_is_the_original(run: Run) -> None:
    model = run.history("original").model(3)
    assert State.from_module(model).sha256() == run.state("original").sha256()


def test_costs_have_a_row_a_cell_and_checkpoint_and_agree_with_the_panel(run: Run) -> None:
    costs = run.costs
    assert len(costs) == len(run.cells) == 9
    table = run.results.set_index(["cell", "checkpoint", "metric"])["value"]
    for row in costs.to_dict("records"):
        panel = table[row["cell"], row["checkpoint"]]
        assert row["client_seconds"] == panel["client_seconds"].iloc[0]
        assert row["bytes_up"] == panel["bytes_up"].iloc[0]
        assert row["gradient_steps"] == panel["gradient_steps"].iloc[0]
    ga = costs[costs["method"] == "ga"].set_index("checkpoint")
    assert ga.loc["recovered", "client_examples"] > ga.loc["unlearned", "client_examples"] > 0
    assert ga.loc["unlearned", "speedup"] == table[ga.loc["unlearned", "cell"], "unlearned", "speedup"].iloc[0]
    assert set(costs["computed"]) == {True}
    assert set(costs["threads"]) == {1}
    assert costs["host"].str.len().min() > 0


def test_what_an_earlier_run_computed_is_known_as_cached(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    later = Run(run.path)
    later.__dict__["manifest"] = run.manifest | {"created": 1e10}
    assert set(later.costs["computed"]) == {False}
    later = Run(run.path)
    later.__dict__["cells"] = run.cells.assign(model="/gone/model.safetensors")
    assert later.costs["computed"].isna().all()
    assert np.isfinite(later.costs["client_seconds"]).all()


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda run: run.history("nobody"), r"cell='nobody': allowed is one of .*retrain"),
        (lambda run: run.model("gaa"), "did you mean 'ga'"),
        (lambda run: run.model("ga", "trained"), "checkpoint='trained': allowed is one of recovered, unlearned"),
        (lambda run: run.history("original").update(4, "site-1"), "round=4: allowed is 1 to 3, the rounds of original"),
        (lambda run: run.history("original").update(1, "site-9"), "site='site-9'.* site-0, site-1, site-2"),
        (lambda run: run.history("ga").model(1), "ga unlearned has none; .*keep-histories=true"),
        (lambda run: run.history("retrain", "unlearned").record(1), "retrain unlearned has none"),
    ],
)
def test_what_is_not_there_is_one_line(run: Run, ask: object, says: str) -> None:
    with pytest.raises(BadInput, match=says) as raised:
        ask(run)  # type: ignore[operator]
    assert "\n" not in str(raised.value)
    assert raised.value._render_traceback_() == [f"BadInput: {raised.value}"]


def test_weights_that_are_gone_are_one_line(run: Run) -> None:
    later = Run(run.path)
    later.__dict__["cells"] = run.cells.assign(model="/gone/model.safetensors")
    with pytest.raises(BadInput, match="the same `lethe run` again"):
        later.model("ga")


def test_a_record_without_the_shape_of_its_records_says_how_to_get_it(run: Run) -> None:
    later = Run(run.path)
    cells = [{name: value for name, value in cell.items() if name != "network"} for cell in run.manifest["cells"]]
    later.__dict__["manifest"] = run.manifest | {"cells": cells}
    with pytest.raises(BadInput, match="from the cache it takes seconds"):
        later.model("ga")


def test_a_method_with_several_cells_is_told_apart_by_their_ids(run: Run) -> None:
    later = Run(run.path)
    more = run.cells.query("method == 'ga'").assign(cell="another", model="/elsewhere/model.safetensors")
    later.__dict__["cells"] = pd.concat([run.cells, more])
    with pytest.raises(BadInput, match=r"one of its cells: .*another \(client:.*run.cells"):
        later.state("ga")
