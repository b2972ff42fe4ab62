"""A site tells who it is and which records a request means, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from clients.catalogue import OPERATIONS
from clients.site import Site
from partitions.errors import BadInput

MakeSite = Callable[..., Site]


def test_it_describes_itself_in_scalars(make_site: MakeSite) -> None:
    site = make_site(train=30, holdout=8)
    facts = site.describe()
    assert (facts["name"], facts["num-train"], facts["num-holdout"]) == ("site-0", 30, 8)
    assert (facts["data-shape"], facts["num-classes"]) == ([10, 10], 3)
    assert (facts["device-kind"], facts["precision"]) == ("cpu", "32-true")
    assert json.loads(str(facts["classes"])) == ["air", "lung", "bone"]
    assert sum(json.loads(str(facts["class-counts"])).values()) == 30
    assert json.loads(str(facts["allows"])) == OPERATIONS.names()


def test_what_it_tells_of_itself_holds_no_patient_and_no_record(make_site: MakeSite) -> None:
    site = make_site()
    text = json.dumps(site.describe()) + json.dumps(site.selection_summary("client:site-0", 0))
    assert "patient" not in text
    assert not any(record in text for record in site.train.table["record"])


class TestFingerprint:
    def test_the_same_records_give_the_same(self, make_site: MakeSite) -> None:
        assert make_site().fingerprint == make_site(name="other", batch_size=4).fingerprint

    def test_other_records_or_another_division_give_another(self, make_site: MakeSite) -> None:
        assert len({make_site(train=n, holdout=h).fingerprint for n, h in [(30, 8), (29, 9), (30, 7)]}) == 3

    def test_another_target_gives_another(self, make_site: MakeSite) -> None:
        changed = make_site()
        changed.train.targets[3] = (changed.train.targets[3] + 1) % 3
        assert changed.fingerprint != make_site().fingerprint


class TestSelection:
    def test_a_client_request_divides_its_own_site_only(self, make_site: MakeSite) -> None:
        departing, staying = make_site(), make_site(name="site-1")
        assert departing.records("forget", "client:site-0", 0).tolist() == list(range(30))
        assert departing.records("retain", "client:site-0", 0).size == 0
        assert staying.records("retain", "client:site-0", 0).tolist() == list(range(30))

    def test_all_is_all_whatever_the_request(self, make_site: MakeSite) -> None:
        assert len(make_site().records("all", "client:site-0", 0)) == 30

    def test_forget_and_retain_divide_the_records(self, make_site: MakeSite) -> None:
        site = make_site()
        forget, retain = (site.records(w, "class:1", 0) for w in ("forget", "retain"))  # type: ignore[arg-type]
        assert sorted([*forget, *retain]) == list(range(30))
        assert set(site.train.targets[forget]) == {1}

    def test_no_request_forgets_nothing(self, make_site: MakeSite) -> None:
        assert len(make_site().records("retain", "", 0)) == 30
        assert len(make_site().records("forget", "", 0)) == 0

    def test_the_summary_counts_trained_and_held_out_records(self, make_site: MakeSite) -> None:
        site = make_site(train=30, holdout=8)
        summary = site.selection_summary("class:2", 0)
        assert summary["num-forget"] == int((site.train.targets[:30] == 2).sum())
        assert summary["forget-holdout"] == int((site.train.targets[30:] == 2).sum())
        assert (summary["num-forget"] + summary["num-retain"], summary["retain-holdout"]) == (
            30,
            8 - summary["forget-holdout"],
        )

    def test_the_hash_is_of_the_records_not_of_the_text(self, make_site: MakeSite) -> None:
        def hashes(text: str) -> tuple[object, object]:
            summary = make_site().selection_summary(text, 0)
            return summary["train-hash"], summary["hash"]

        assert hashes("client:site-0") == hashes("client:site-0,site-7")
        assert len({hashes(text) for text in ("client:site-0", "client:site-1", "class:1", "class:2")}) == 4

    def test_a_request_that_cannot_be_read_is_refused(self, make_site: MakeSite) -> None:
        with pytest.raises(BadInput):
            make_site().selection_summary("nonsense", 0)

    def test_unknown_records_are_refused(self, make_site: MakeSite) -> None:
        with pytest.raises(BadInput, match="all, retain, forget"):
            make_site().records("some", "client:site-0", 0)  # type: ignore[arg-type]


def test_pseudonyms_are_stable_and_do_not_name_the_patient(make_site: MakeSite) -> None:
    names = make_site().pseudonyms
    assert names == make_site(train=20).pseudonyms
    assert len(set(names.values())) == 5
    assert names[""] == ""
    assert not any(patient and patient in name for patient, name in names.items())


def test_views_do_not_copy_the_data(make_site: MakeSite) -> None:
    site = make_site()
    assert site.train.inputs is site.holdout.inputs
    assert np.array_equal(site.holdout.indices, np.arange(30, 38))


def test_a_selection_counts_its_records_by_class(make_site: MakeSite) -> None:
    site = make_site()
    told = site.selection_summary("class:1", 0)
    strata = site.table("train")["stratum"]
    assert told["forget-classes"] == [0, int((strata == "1").sum()), 0]
    assert told["retain-classes"] == [int((strata == "0").sum()), 0, int((strata == "2").sum())]
