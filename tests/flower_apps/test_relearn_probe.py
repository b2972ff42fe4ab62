"""The table of a relearning curve, on real sites in the test's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from clients.catalogue import OPERATIONS
from clients.scoring import score_records
from clients.site import Site
from flower_apps.cases import Case
from flower_apps.identity import Identity
from flower_apps.probes.base import Bench
from flower_apps.probes.relearn import COLUMNS, RelearningCurve
from flower_apps.settings import GroupSettings
from flower_apps.stages import Stage, StageStore
from flower_apps.workshop import Workshop
from strategies.base import Outcome
from strategies.events import EventSink
from tests.small_federation import SCHEDULE, SIZES, Original, SiteGrid, made_up_data, make_sites, plan_of
from unlearning.state import State

CURVE = RelearningCurve()


@pytest.fixture(scope="module")
def model() -> State:
    return Original("cnn").state


def sites_without(holdout: bool, reference: bool = False) -> tuple[dict[str, Site], Site | None]:
    """Return the sites, with or without what they hold out, and a reference set of the first site's records."""
    data, places = made_up_data(SIZES)
    made = make_sites("cnn")
    settings = made["site-a"].settings
    sites = {
        name: Site(name, settings, data, {"train": place[:-4], "holdout": place[-4:] if holdout else place[:0]})
        for name, place in places.items()
    }
    everyone = np.concatenate([place[-4:] for place in places.values()])
    return sites, Site("", settings, data, {"reference": everyone}) if reference else None


def measured(
    home: Path,
    state: State,
    text: str,
    *,
    sites: Mapping[str, Site] | None = None,
    reference: Site | None = None,
    epochs: int = 2,
    grid: SiteGrid | None = None,
    label: str = "ga recovered",
    seed: int = 0,
    **schedule: Any,
) -> tuple[pd.DataFrame, SiteGrid, Stage]:
    """Measure a model; the cache of `home` is used."""
    grid = grid or SiteGrid(sites or make_sites("cnn"))
    settings = GroupSettings.parse({"dataset": "digits", "relearn-epochs": epochs, "device": "cpu"})
    workshop = Workshop(settings, StageStore(home), grid.federation(), EventSink(None))
    identity = Identity(settings, {name: dict(site.describe()) for name, site in grid.sites.items()})
    plan = plan_of(grid.sites, text)
    case = Case(plan, {name: dict(site.selection_summary(text, 0)) for name, site in grid.sites.items()}, seed)
    bench = Bench(settings, workshop, identity, replace(SCHEDULE, **schedule), reference)
    stage = workshop.stage("recover", label, {"of": state.sha256()}, lambda _: Outcome(state=state))
    return CURVE.measure(bench, stage, label, case), grid, stage


def asked(grid: SiteGrid, kind: str) -> list[str]:
    return sorted(one.site for one in grid.asked if one.kind == kind)


def test_it_is_wanted_of_recovered_models_where_the_settings_say_so() -> None:
    on, off = (GroupSettings.parse({"relearn-epochs": epochs}) for epochs in (5, 0))
    assert CURVE.wanted(on, "recovered")
    assert not CURVE.wanted(on, "unlearned") and not CURVE.wanted(on, "trained") and not CURVE.wanted(off, "recovered")


@pytest.mark.parametrize("text", ["client:site-b", "class:0", "patient:p-0", "sample:0.3", "client:site-b>class:1"])
def test_a_row_a_forgotten_record_and_epoch_from_those_who_hold_them(tmp_path: Path, model: State, text: str) -> None:
    table, grid, _ = measured(tmp_path, model, text)
    assert list(table.columns) == COLUMNS
    cards = [score_records(site, model, None, text, 0)["scorecard"] for site in grid.sites.values()]
    card = pd.concat(cards, ignore_index=True)
    own = card[card["selected"]].set_index("record").sort_index()
    for epoch, rows in table.groupby("epoch"):
        assert rows.set_index("record").sort_index()["split"].equals(own["split"]), epoch
    start = table[table["epoch"] == 0].set_index("record").sort_index()
    assert start["metric"].equals(own["metric"])
    assert start["loss"].to_numpy() == pytest.approx(own["loss"].to_numpy(), rel=1e-4, abs=1e-5)
    assert set(table["epoch"]) == {0, 1, 2} and set(table["reason"]) == {""} and table["selected"].all()
    trained = set(own.loc[own["split"] == "train", "site"])
    assert asked(grid, "train.relearn") == sorted([*trained] * 2)
    assert asked(grid, "evaluate.forgotten") == sorted([*set(own["site"])] * 3)
    assert len(trained) == 1 if text == "client:site-b" else len(trained) > 1


def test_sites_read_nothing_but_forgotten_records(tmp_path: Path, model: State) -> None:
    _, grid, _ = measured(tmp_path, model, "class:0")
    for name, opened in grid.opened.items():
        site = grid.sites[name]
        meant = {int(i) for view in site.views for i in view.indices[(view.table["stratum"] == "0").to_numpy()]}
        assert opened <= meant


def test_what_is_trained_on_comes_back_and_the_model_stays_as_it_is(tmp_path: Path, model: State) -> None:
    before = model.sha256()
    table, _, stage = measured(tmp_path, model, "class:0", epochs=5, lr=0.05)
    losses = table[table["split"] == "train"].groupby("epoch")["loss"].mean()
    assert losses[5] < losses[0]
    assert model.sha256() == stage.state.sha256() == before


def test_a_learning_rate_of_zero_gives_a_flat_curve(tmp_path: Path, model: State) -> None:
    table, _, _ = measured(tmp_path, model, "class:0", lr=0.0)
    curves = table.pivot(index="record", columns="epoch", values="loss")
    assert curves[1].equals(curves[0]) and curves[2].equals(curves[0])


def test_equal_models_have_one_curve_whatever_they_are_called(tmp_path: Path, model: State) -> None:
    mine, _, _ = measured(tmp_path / "a", model, "class:0", label="ga recovered")
    gold, _, _ = measured(tmp_path / "b", model, "class:0", label="retrain recovered")
    assert mine.equals(gold)
    shared, grid, _ = measured(tmp_path / "a", model, "class:0", label="retrain recovered")
    assert shared.equals(mine) and not grid.asked


def test_other_records_seeds_and_models_have_other_curves(tmp_path: Path, model: State) -> None:
    measured(tmp_path, model, "class:0", epochs=1)
    moved = State({n: t * 1.01 for n, t in model.params.items()}, model.float_buffers, model.int_buffers)
    for state, text, seed in ((model, "class:1", 0), (model, "class:0", 1), (moved, "class:0", 0)):
        _, grid, _ = measured(tmp_path, state, text, seed=seed, epochs=1)
        assert asked(grid, "train.relearn")


def test_a_longer_curve_goes_on_where_a_shorter_one_ended(tmp_path: Path, model: State) -> None:
    short, _, _ = measured(tmp_path, model, "class:0", epochs=2)
    longer, grid, _ = measured(tmp_path, model, "class:0", epochs=3)
    assert {one.config["round"] for one in grid.asked if one.kind == "train.relearn"} == {3}
    assert longer[longer["epoch"] <= 2].reset_index(drop=True).equals(short)
    assert longer.equals(measured(tmp_path / "fresh", model, "class:0", epochs=3)[0])
    again, grid, _ = measured(tmp_path, model, "class:0", epochs=1)
    assert asked(grid, "train.relearn"), "a longer curve is no shorter one"
    assert again.equals(short[short["epoch"] <= 1].reset_index(drop=True))


def test_after_a_divergence_there_is_no_number_but_a_reason(tmp_path: Path, model: State) -> None:
    table, _, _ = measured(tmp_path, model, "class:0", lr=1e30)
    later = {epoch: table[table["epoch"] == epoch].reset_index(drop=True) for epoch in (0, 1, 2)}
    assert later[0]["metric"].notna().all()
    assert later[1][["metric", "loss"]].isna().all(axis=None), "huge weights, outputs that are not finite"
    assert later[2][["metric", "loss"]].isna().all(axis=None)
    assert later[2]["reason"].str.startswith("relearning diverged in epoch 2: ").all()
    assert later[2]["reason"].str.contains("finite").all()
    assert later[2]["record"].equals(later[0]["record"])


def test_reference_records_of_the_same_strata_stand_in_for_a_holdout_that_is_not_there(
    tmp_path: Path, model: State
) -> None:
    sites, reference = sites_without(holdout=False, reference=True)
    assert reference is not None
    table, _, _ = measured(tmp_path / "a", model, "class:0", sites=sites, reference=reference)
    stand_in = table[table["split"] == "reference"]
    assert set(stand_in["stratum"]) == {"0"} and set(stand_in["site"]) == {""}
    assert len(stand_in) == 3 * int((reference.table("reference")["stratum"] == "0").sum())
    for text, with_holdout in (("class:0", True), ("sample:0.3", False)):
        sites, reference = sites_without(holdout=with_holdout, reference=True)
        table, _, _ = measured(tmp_path / "b", model, text, sites=sites, reference=reference)
        assert "reference" not in set(table["split"])


def test_the_sites_have_an_operation_for_each_message() -> None:
    assert (OPERATIONS.get("relearn").category, OPERATIONS.get("forgotten").category) == ("train", "evaluate")
