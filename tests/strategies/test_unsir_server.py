"""UNSIR at the server: which version goes to whom, how it is weighed, and what it cannot do."""

from __future__ import annotations

import pytest
from fake_sites import Hospitals, federation, schedule, start_state

from strategies.history import HistoryWriter
from strategies.plans import RequestPlan, SiteCounts
from strategies.unsir import METHOD

SHARED = {"site-a": (10, 0), "site-b": (5, 15), "site-c": (0, 30), "site-d": (20, 20)}


def request(granularity: str, text: str, held=None) -> RequestPlan:
    return RequestPlan(text, 0, granularity, (), {site: SiteCounts(*c) for site, c in (held or SHARED).items()})


def run(asked: RequestPlan, held=None, work=None, preset: str = "lethe"):
    fed = federation(Hospitals(held or SHARED))
    made = METHOD(fed, schedule(), asked, seed=7, config=METHOD.resolve_config(preset), work=work)
    return made.run(start_state()), fed.grid.calls()


def test_holders_of_the_class_that_keep_records_do_the_class_version_on_those_alone(tmp_path) -> None:
    outcome, calls = run(request("class", "class:3>class:1,2"), work=HistoryWriter(tmp_path))
    assert [(site, kind) for site, kind, _ in calls] == [(f"site-{s}", "train.unsir_class") for s in "bd"]
    assert {(call.config["records"], tuple(call.config["classes"])) for _, _, call in calls} == {("retain", ("1", "2"))}
    weights = {site: record.weight for site, record in HistoryWriter(tmp_path).read().record(1).sites.items()}
    assert weights == pytest.approx({"site-b": 15 / 35, "site-d": 20 / 35})
    assert any("site-a" in note for note in outcome.notes)


def test_noise_for_a_class_can_be_learned_anywhere() -> None:
    held = {"site-a": (10, 0), "site-b": (0, 15), "site-c": (0, 30)}
    _, calls = run(request("class", "class:1", held), held)
    assert [site for site, _, _ in calls] == ["site-b", "site-c"]


@pytest.mark.parametrize(("granularity", "text"), [("sample", "sample:0.2"), ("patient", "patient:p")])
def test_records_are_forgotten_by_the_instance_version_weighed_by_forget_records(
    tmp_path, granularity: str, text: str
) -> None:
    _, calls = run(request(granularity, text), work=HistoryWriter(tmp_path))
    assert {(site, kind, call.config["records"]) for site, kind, call in calls} == {
        (f"site-{s}", "train.unsir_instance", "both") for s in "bd"
    }
    weights = {site: record.weight for site, record in HistoryWriter(tmp_path).read().record(1).sites.items()}
    assert weights == pytest.approx({"site-b": 5 / 25, "site-d": 20 / 25})


def test_a_departing_site_is_said_to_be_out_of_reach() -> None:
    assert "keeps none" in METHOD.unfit("client", has_history=True, has_logits=True)
    assert "logits" in METHOD.unfit("class", has_history=True, has_logits=False)


def test_a_patient_that_is_a_whole_site_leaves_nothing_to_pair() -> None:
    held = {"site-a": (10, 0), "site-b": (0, 15)}
    assert "pair" in METHOD.unfit_for(request("patient", "patient:p", held))
    assert METHOD.unfit_for(request("class", "class:1", held)) == ""
    assert METHOD.unfit_for(request("patient", "patient:p")) == ""


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("common", {"optimizer": "sgd", "impair-lr": 0.1, "repair-lr": 0.1, "noise-steps": 40, "noise-repeats": 20}),
        ("original", {"optimizer": "adam", "impair-lr": 0.02, "repair-lr": 0.01, "retain-per-class": 1000}),
        ("supreme", {"optimizer": "adam", "impair-lr": 1e-4, "noise-steps": 25, "noise-repeats": 80}),
    ],
)
def test_presets_say_where_the_values_come_from(preset: str, expected: dict) -> None:
    _, calls = run(request("class", "class:1"), preset=preset)
    for _, _, call in calls:
        assert {key: call.config[key] for key in expected} == expected


def test_mufac_trains_with_frozen_statistics() -> None:
    _, calls = run(request("sample", "sample:0.1"), preset="mufac")
    assert {(c.config["impair-lr"], c.config["bn-mode"], c.config["noise-steps"]) for _, _, c in calls} == {
        (1e-3, "eval", 5)
    }
