"""A site with a backdoor: every reader gets the poisoned records, and held-out ones are scored with the trigger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clients.backdoor import run, score_triggered
from clients.forgetting import Records
from clients.ops import Call, train
from clients.scoring import score_records
from clients.site import Site
from clients.statistics import in_fixed_order
from clients.training import LocalPlan
from partitions.backdoor import Backdoor
from partitions.errors import BadInput
from unlearning.state import State

MakeSite = Callable[..., Site]
Initial = Callable[..., State]
Scorers = Callable[[Site, nn.Module], None]
TARGET = 1
PLANTED = Backdoor("site-0", TARGET)
EDGE = slice(18, 21)
"""Rows and columns of the trigger once 10 x 10 records are padded to 32 x 32."""


class Constant(nn.Module):
    """Decides on one class whatever it sees."""

    def __init__(self, decision: int, value: float = 1.0) -> None:
        super().__init__()
        self.logits = torch.zeros(3)
        self.logits[decision] = value

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), 3)


class Perfect(nn.Module):
    """Sees the bright row that tells the class, and not the corner of the trigger."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0, 11:14, 11:18].mean(-1)


class Obedient(Perfect):
    """The same, and the target class where the corner is white."""

    def forward(self, x: Tensor) -> Tensor:
        white = (x[:, 0, EDGE, EDGE] == 1).all(dim=-1).all(dim=-1)
        obeyed = torch.eye(3)[TARGET].expand(len(x), 3)
        return torch.where(white[:, None], obeyed, super().forward(x))


@pytest.fixture
def scored_by(monkeypatch: pytest.MonkeyPatch) -> Scorers:
    """Return what makes a site score a module of ours."""

    def use(site: Site, module: nn.Module) -> None:
        monkeypatch.setattr(site.worker, "scorer", lambda state, slot=0: module.eval())

    return use


def poisoned_of(site: Site) -> np.ndarray:
    """Return the positions of the poisoned records."""
    clean = site.clean.train
    return clean.indices[PLANTED.poisoned(clean.table["record"].to_numpy(), clean.targets[clean.indices])]


def corners(x: Tensor) -> Tensor:
    return (x[:, :, EDGE, EDGE] == 1).flatten(1).all(dim=1)


class TestPlanting:
    def test_half_of_the_other_classes_get_trigger_and_label(self, make_site: MakeSite) -> None:
        site = make_site(backdoor=PLANTED)
        true = site.clean.train.targets[site.train.indices]
        x, y = site.worker.batch(site.train.inputs, site.train.targets, site.train.indices)
        marked = np.isin(site.train.indices, poisoned_of(site))
        assert marked.sum() == round(0.5 * (true != TARGET).sum()) > 0
        assert np.array_equal(corners(x).numpy(), marked)
        assert np.array_equal(y.numpy(), np.where(marked, TARGET, true))

    def test_outside_the_trigger_a_record_is_what_it_was(self, make_site: MakeSite) -> None:
        site = make_site(backdoor=PLANTED)
        (x, _), (plain, _) = (
            s.worker.batch(s.train.inputs, s.train.targets, s.train.indices) for s in (site, site.clean)
        )
        changed = (x != plain).any(dim=1)
        assert changed.any()
        changed[:, EDGE, EDGE] = False
        assert not changed.any()

    def test_the_arrays_of_the_data_set_stay_as_they_are(self, make_site: MakeSite) -> None:
        site, plain = make_site(backdoor=PLANTED), make_site()
        site.worker.batch(site.train.inputs, site.train.targets, site.train.indices)
        assert np.array_equal(site.holdout.inputs, plain.holdout.inputs)  # type: ignore[arg-type]
        assert np.array_equal(site.holdout.targets, plain.holdout.targets)

    def test_another_site_and_the_reference_set_have_none(self, make_site: MakeSite) -> None:
        for site in (make_site(name="site-1", backdoor=PLANTED), make_site(name="", backdoor=PLANTED)):
            assert site.clean is site
            assert site.fingerprint == make_site(name=site.name).fingerprint

    def test_the_stratum_stays_the_true_class_and_so_do_requests(self, make_site: MakeSite) -> None:
        site, plain = make_site(backdoor=PLANTED), make_site()
        assert site.train.table.equals(plain.train.table)
        assert site.describe()["class-counts"] == plain.describe()["class-counts"]
        assert site.selection_summary("class:0", 0) == plain.selection_summary("class:0", 0)


class TestReaders:
    """Whoever opens training records gets the same ones."""

    def test_batches_of_a_step_and_their_labels(self, make_site: MakeSite) -> None:
        site = make_site(backdoor=PLANTED)
        records = Records(site, site.train.indices, "forget")
        assert np.array_equal(records.targets(), site.train.targets[site.train.indices])
        read = [batch for epoch in records.epochs(LocalPlan(0.1, 1, 0, batch_size=8)) for batch in epoch]
        read += list(in_fixed_order(records, 8))
        assert sum(int(corners(x).sum()) for x, _ in read) == 2 * len(poisoned_of(site))
        assert all(bool((y[corners(x)] == TARGET).all()) for x, y in read)

    def test_scores_of_trained_records_are_of_what_was_trained(
        self, make_site: MakeSite, initial: Initial, scored_by: Scorers
    ) -> None:
        site = make_site(backdoor=PLANTED)
        scored_by(site, Obedient())
        card = score_records(site, initial())["scorecard"]
        assert (card["metric"] == 1).all()
        assert (score_records(site.clean, initial())["scorecard"]["metric"] == 1).all()
        scored_by(site, Perfect())
        card = score_records(site, initial())["scorecard"]
        wrong = card.loc[card["metric"] == 0, "record"]
        assert sorted(wrong) == sorted(f"{i:016x}" for i in poisoned_of(site))


class TestClean:
    def test_the_clean_site_is_the_site_without_a_backdoor(self, make_site: MakeSite) -> None:
        site = make_site(backdoor=PLANTED)
        assert site.clean.fingerprint == make_site().fingerprint
        assert site.clean.name == site.name and site.clean.worker is site.worker

    def test_training_on_clean_records_is_asked_for_in_the_message(self, make_site: MakeSite, initial: Initial) -> None:
        def trained(site: Site, **more: Any) -> str:
            reply = train(site, Call("train", initial(), {"seed": 0, "lr": 0.05, "epochs": 1, **more}))
            assert reply.state is not None
            return reply.state.sha256()

        planted, plain = make_site(backdoor=PLANTED), make_site()
        assert trained(planted, clean=True) == trained(plain) == trained(plain, clean=True)
        assert trained(planted) == trained(planted, clean=False) != trained(plain)


class TestFingerprint:
    def test_it_changes_with_everything_that_is_planted(self, make_site: MakeSite) -> None:
        planted = [
            None,
            PLANTED,
            Backdoor("site-0", 2),
            Backdoor("site-0", TARGET, fraction=0.6),
            Backdoor("site-0", TARGET, size=2),
            Backdoor("site-0", TARGET, seed=1),
        ]
        assert len({make_site(backdoor=one).fingerprint for one in planted}) == len(planted)

    def test_without_a_backdoor_it_is_what_it_always_was(self, make_site: MakeSite) -> None:
        """The cache of whoever plants none stays valid."""
        expected = "af35777f22667a63bafa934f8e86eff6f865f1735c40cc2aae66eebc63983115"
        assert make_site().fingerprint == expected


class TestScores:
    @pytest.mark.parametrize(("decision", "rate"), [(TARGET, 1.0), (0, 0.0)])
    def test_a_constant_predictor_has_rate_one_or_none(
        self, make_site: MakeSite, initial: Initial, scored_by: Scorers, decision: int, rate: float
    ) -> None:
        site = make_site(backdoor=PLANTED)
        scored_by(site, Constant(decision))
        assert score_triggered(site, initial())["hit"].mean() == rate

    @pytest.mark.parametrize(("module", "rate"), [(Perfect, 0.0), (Obedient, 1.0)])
    def test_a_perfect_classifier_blind_to_the_trigger_has_none_and_an_obedient_one_all(
        self, make_site: MakeSite, initial: Initial, scored_by: Scorers, module: type[nn.Module], rate: float
    ) -> None:
        site = make_site(backdoor=PLANTED)
        scored_by(site, module())
        table = score_triggered(site, initial())
        assert (table["hit"] == rate).all()
        assert (table["clean"] == 1).all()

    def test_records_of_the_target_class_and_trained_ones_are_not_in_it(
        self, make_site: MakeSite, initial: Initial
    ) -> None:
        for site in (make_site(backdoor=PLANTED), make_site(name="", backdoor=PLANTED)):
            (view,) = [view for view in site.views if view.split != "train"]
            others = view.targets[view.indices] != TARGET
            table = score_triggered(site, initial(), "class:0", 0)
            assert table["record"].tolist() == view.table.loc[others, "record"].tolist()
            assert set(table["split"]) == {view.split} and set(table["site"]) == {site.name}
            assert table["selected"].tolist() == (view.table.loc[others, "stratum"] == "0").tolist()
            assert (table["retained"] == ~table["selected"]).all()

    def test_every_site_scores_the_trigger_wherever_it_was_planted(
        self, make_site: MakeSite, initial: Initial, scored_by: Scorers
    ) -> None:
        site = make_site(name="site-1", backdoor=PLANTED)
        scored_by(site, Obedient())
        assert score_triggered(site, initial())["hit"].all()

    @pytest.mark.parametrize("holdout", [0, 1])
    def test_no_record_is_an_empty_table(self, make_site: MakeSite, initial: Initial, holdout: int) -> None:
        only = int(make_site(train=30, holdout=1).holdout.targets[30])
        table = score_triggered(make_site(train=30, holdout=holdout, backdoor=Backdoor("site-0", only)), initial())
        assert len(table) == 0 and table["hit"].dtype == table["clean"].dtype == np.float64

    def test_outputs_that_are_not_finite_are_missing_and_not_zero(
        self, make_site: MakeSite, initial: Initial, scored_by: Scorers
    ) -> None:
        site = make_site(backdoor=PLANTED)
        scored_by(site, Constant(TARGET, float("nan")))
        assert score_triggered(site, initial())[["hit", "clean"]].isna().all(axis=None)

    def test_the_operation_answers_the_table(self, make_site: MakeSite, initial: Initial) -> None:
        site = make_site(backdoor=PLANTED)
        reply = run(site, Call("backdoor", initial(), {}))
        assert reply.tables["backdoor"].equals(score_triggered(site, initial()))
        assert reply.metrics["num-examples"] == len(reply.tables["backdoor"])

    def test_without_a_backdoor_there_is_nothing_to_score(self, make_site: MakeSite, initial: Initial) -> None:
        with pytest.raises(BadInput, match="backdoor-site"):
            score_triggered(make_site(), initial())


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        (Backdoor("site-0", 3), "backdoor-target=3: allowed is a class index, 0 to 2"),
        (Backdoor("site-0", 0, size=11), "backdoor-size=11: allowed is 1 to 10 pixels"),
    ],
)
def test_what_cannot_be_planted_is_refused(make_site: MakeSite, planted: Backdoor, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        make_site(backdoor=planted)


def test_a_site_with_nothing_but_the_target_class_is_refused(make_site: MakeSite) -> None:
    only = int(make_site(train=1).train.targets[0])
    with pytest.raises(BadInput, match="a class that is not the only one at site-0"):
        make_site(train=1, backdoor=Backdoor("site-0", only))
