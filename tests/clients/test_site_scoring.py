"""Scorecards and comparisons: one row a record, in fp32 and eval mode, without touching the training model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from clients import scoring
from clients.catalogue import TASKS
from clients.scoring import KeptOutputs, evaluating, score_records
from clients.site import Site
from clients.tasks.classification import class_scores
from unlearning.state import State

MakeSite = Callable[..., Site]
Initial = Callable[..., State]


def scorecard(site: Site, state: State, request: str = "", seed: int = 0) -> pd.DataFrame:
    return score_records(site, state, None, request, seed)["scorecard"]


def comparison(site: Site, state: State, other: State, request: str = "", seed: int = 0) -> pd.DataFrame:
    return score_records(site, state, other, request, seed)["comparison"]


def outputs(site: Site, state: State, model: str = "cnn") -> torch.Tensor:
    module = TASKS.get("classification").build(model, (10, 10), 3)
    state.load_into(module)
    with torch.no_grad():
        return module.eval()(TASKS.get("classification").to_inputs(site.train.inputs))  # type: ignore[no-any-return]


real = scoring.outputs_of


class TestKeptOutputs:
    """Outputs of gold stay while there is room."""

    def test_the_oldest_go_first_and_what_is_too_large_is_not_kept(self) -> None:
        made: list[str] = []

        def make(name: str, floats: int) -> torch.Tensor:
            made.append(name)
            return torch.zeros(floats)

        kept = KeptOutputs(limit=400)
        for name, floats in [("a", 50), ("b", 50), ("a", 50), ("c", 50), ("b", 50), ("a", 50), ("huge", 200)]:
            assert len(kept.get((name,), lambda n=name, f=floats: make(n, f))) == floats  # type: ignore[misc]
        assert made == ["a", "b", "c", "b", "a", "huge"]


class TestScorecard:
    def test_one_row_a_record_training_records_first(self, make_site: MakeSite, initial: Initial) -> None:
        site = make_site()
        card = scorecard(site, initial(), "class:1", 0)
        assert card["record"].tolist() == [*site.train.table["record"], *site.holdout.table["record"]]
        assert card["split"].tolist() == ["train"] * 30 + ["holdout"] * 8
        assert set(card["site"]) == {"site-0"}
        assert (card["selected"] == (card["stratum"] == "1")).all()
        assert (card["retained"] == ~card["selected"]).all()
        assert card["selected"].dtype == bool

    def test_the_scores_are_those_of_the_model(self, make_site: MakeSite, initial: Initial) -> None:
        site, state = make_site(), initial()
        card = scorecard(site, state)
        expected = class_scores(outputs(site, state), torch.from_numpy(site.train.targets))
        for name, values in expected.items():
            assert card[name].to_numpy() == pytest.approx(values.numpy(), rel=1e-5, abs=1e-5)

    def test_the_batch_size_of_scoring_does_not_change_the_rows(
        self, make_site: MakeSite, initial: Initial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = scorecard(make_site(), initial())
        monkeypatch.setattr(scoring, "BATCH", 7)
        parts = scorecard(make_site(), initial())
        assert parts["loss"].to_numpy() == pytest.approx(whole["loss"].to_numpy(), rel=1e-5)
        assert parts["record"].equals(whole["record"])

    def test_the_same_twice_bit_for_bit(self, make_site: MakeSite, initial: Initial) -> None:
        assert scorecard(make_site(), initial()).equals(scorecard(make_site(), initial()))

    def test_precision_of_training_does_not_reach_it(self, make_site: MakeSite, initial: Initial) -> None:
        full, half = (scorecard(make_site(precision=p), initial()) for p in ("32-true", "bf16-mixed"))
        assert full.equals(half)

    def test_patients_are_pseudonyms(self, make_site: MakeSite, initial: Initial) -> None:
        card = scorecard(make_site(), initial())
        assert card["patient"].nunique() == 4
        assert not card["patient"].str.contains("patient").any()

    def test_a_model_that_is_not_finite_scores_nan(self, make_site: MakeSite, initial: Initial) -> None:
        state = initial()
        state.params["0.weight"][0] = torch.nan
        card = scorecard(make_site(), state)
        assert card[["metric", "loss", "phi", "entropy", "hinge"]].isna().all(axis=None)

    def test_an_empty_holdout_has_no_rows(self, make_site: MakeSite, initial: Initial) -> None:
        assert len(scorecard(make_site(holdout=0), initial())) == 30

    def test_the_reference_set_is_scored_without_a_site(self, make_site: MakeSite, initial: Initial) -> None:
        card = scorecard(make_site(name="", train=12), initial(), "client:site-0", 0)
        assert set(card["split"]) == {"reference"}
        assert set(card["site"]) == {""}
        assert not card["selected"].any()
        assert card["retained"].all()


class TestModes:
    def test_scoring_uses_running_statistics_and_leaves_them(self, make_site: MakeSite, initial: Initial) -> None:
        site, state = make_site(train=6, holdout=2, model="resnet18"), initial("resnet18")
        expected = class_scores(outputs(site, state, "resnet18"), torch.from_numpy(site.train.targets))
        assert scorecard(site, state)["loss"].to_numpy() == pytest.approx(expected["loss"].numpy(), rel=1e-4)
        assert State.from_module(site.worker._scorers[0]).sha256() == state.sha256()

    def test_the_training_model_keeps_its_weights_and_mode(self, make_site: MakeSite, initial: Initial) -> None:
        site = make_site()
        model = site.worker.load(initial(seed=3))
        model.train()
        before = site.worker.state().sha256()
        scorecard(site, initial(seed=4))
        comparison(site, initial(seed=4), initial(seed=5))
        assert site.worker.state().sha256() == before
        assert model.training

    def test_evaluating_puts_every_part_back_in_its_own_mode(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).train()
        model[1].eval()
        with pytest.raises(ZeroDivisionError), evaluating(model):
            assert not model.training and not model[0].training
            raise ZeroDivisionError
        assert [model.training, model[0].training, model[1].training] == [True, True, False]


class TestComparison:
    def test_a_model_does_not_diverge_from_itself(self, make_site: MakeSite, initial: Initial) -> None:
        table = comparison(make_site(), initial(), initial(), "class:1", 0)
        assert len(table) == 38
        assert (table["agree"] == 1).all()
        assert np.allclose(table[["kl", "kl_t4", "js", "actdist"]], 0)
        assert table["selected"].sum() == int((make_site().train.targets == 1).sum())

    def test_the_first_model_is_p(self, make_site: MakeSite, initial: Initial) -> None:
        site, a, b = make_site(), initial(seed=1), initial(seed=2)
        p, q = (torch.softmax(outputs(site, s).double(), 1) for s in (a, b))
        forward = (p * (p / q).log()).sum(1).numpy()
        assert comparison(site, a, b)["kl"].to_numpy() == pytest.approx(forward, rel=1e-4, abs=1e-8)
        assert comparison(site, b, a)["kl"].to_numpy() != pytest.approx(forward, rel=1e-4, abs=1e-8)

    def test_the_rows_are_those_of_the_scorecard(self, make_site: MakeSite, initial: Initial) -> None:
        both = score_records(make_site(), initial(), initial(seed=2), "class:1", 0)
        shared = ["record", "split", "selected", "retained"]
        assert both["scorecard"][shared].equals(both["comparison"][shared])
        assert both["scorecard"].equals(scorecard(make_site(), initial(), "class:1", 0))

    def test_without_another_model_there_is_none(self, make_site: MakeSite, initial: Initial) -> None:
        assert list(score_records(make_site(), initial())) == ["scorecard"]

    def test_gold_is_run_once_however_often_it_is_compared_with(
        self, make_site: MakeSite, initial: Initial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scoring, "_KEPT", KeptOutputs(2**20))
        site, gold = make_site(), initial(seed=9)
        first = comparison(site, initial(seed=1), gold)
        monkeypatch.setattr(
            scoring, "outputs_of", lambda s, v, state, slot=0: real(s, v, state) if slot == 0 else 1 / 0
        )
        assert comparison(site, initial(seed=1), gold).equals(first)

    def test_it_names_no_patient_and_no_class(self, make_site: MakeSite, initial: Initial) -> None:
        table = comparison(make_site(), initial(), initial())
        assert not {"patient", "stratum", "site"} & set(table.columns)
