"""Which records a number is about, and what happens when there are none (METRICS 0.5, 0.7, 0.1)."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from evaluation.evidence import SPLITS


def test_what_an_earlier_step_forgot_can_be_looked_at_again(make_evidence, make_model, make_scorecard) -> None:
    card = make_scorecard("client")
    later = card.assign(step=np.where(card["stratum"] == "1", 2, card["step"]))
    later = later.assign(selected=later["step"] == 2, retained=later["step"] == 0)
    model, gold = make_model(scorecard=later), make_model("retrain", scorecard=later.assign(metric=1.0))
    now = make_evidence(model, gold, granularity="class")
    before = now.of_step(1, "client")
    forgotten = later[(later["step"] == 1) & (later["split"] == "holdout")]
    assert set(before.sample("forget").rows["site"]) == {"site-0"}
    assert before.mean("metric", "forget").value == pytest.approx(forgotten["metric"].mean())
    assert before.mean_difference("metric", "forget").value == pytest.approx(forgotten["metric"].mean() - 1)
    assert before.granularity == "client" and now.granularity == "class"
    itself = make_evidence(gold, gold).of_step(1, "client")
    assert itself.model is itself.gold


def test_client_requests_score_forget_and_retain_on_holdout_and_on_training_records(make_evidence, make_model) -> None:
    found = make_evidence(make_model())
    rows = {which: found.sample(which).rows for which in SPLITS}
    assert {which: len(r) for which, r in rows.items()} == {
        "forget": 30,
        "retain": 90,
        "forget_train": 60,
        "retain_train": 180,
        "test": 120,
    }
    assert set(rows["forget"]["site"]) == {"site-0"}
    assert set(rows["retain"]["split"]) == {"holdout"}


def test_sample_requests_score_the_removed_records_and_the_test_set(make_evidence, make_model, make_scorecard) -> None:
    found = make_evidence(make_model(scorecard=make_scorecard("sample", reference=50)), granularity="sample")
    assert (
        len(make_evidence(make_model(scorecard=make_scorecard("sample")), granularity="sample").sample("retain").rows)
        == 120
    )
    found = make_evidence(found.model, granularity="sample", has_reference=True)
    assert found.sample("forget").rows.equals(found.sample("forget_train").rows)
    assert len(found.sample("forget").rows) == 24
    assert set(found.sample("retain").rows["split"]) == {"reference"}


def test_test_is_the_reference_set_else_all_holdouts_and_the_result_says_so(
    make_evidence, make_model, make_scorecard
) -> None:
    with_reference = make_evidence(make_model(scorecard=make_scorecard(reference=50)), has_reference=True)
    assert with_reference.mean("metric", "test").n == 50
    without = make_evidence(make_model()).mean("metric", "test")
    assert without.n == 120
    assert "holdouts" in without.reason


def test_a_reference_set_that_was_not_scored_is_no_test_set(make_evidence, make_model) -> None:
    found = make_evidence(make_model(), has_reference=True).mean("metric", "test")
    assert (found.status, found.reason) == ("undefined", "the reference set was not scored")


def test_records_of_earlier_requests_are_in_neither_set(make_evidence, make_model, make_scorecard) -> None:
    card = make_scorecard()
    card.loc[card["site"] == "site-1", "retained"] = False
    found = make_evidence(make_model(scorecard=card))
    assert "site-1" not in set(found.sample("retain").rows["site"])
    assert len(found.sample("retain_train").rows) == 120


def test_an_empty_forget_set_is_undefined_and_retain_metrics_still_run(
    make_evidence, make_model, make_scorecard
) -> None:
    card = make_scorecard().assign(selected=False)
    found = make_evidence(make_model(scorecard=card))
    missing = found.mean("metric", "forget_train")
    assert (missing.status, missing.reason) == ("undefined", "empty forget_train set")
    assert math.isnan(missing.value)
    assert found.mean("metric", "retain").status == "ok"


def test_without_holdout_the_reference_set_stands_in_weighted_to_the_labels(
    make_evidence, make_model, make_scorecard
) -> None:
    card = make_scorecard(holdout=0, reference=90)
    mine = card["site"] == "site-0"  # the client has 20 records of stratum 0, 10 of stratum 1 and none of stratum 2
    card = card[~(mine & ((card["stratum"] == "2") | ((card["stratum"] == "1") & (card.index % 2 == 0))))]
    card.loc[card["split"] == "reference", "metric"] = card["stratum"].map({"0": 1.0, "1": 0.5, "2": 0.0})
    found = make_evidence(make_model(scorecard=card), has_reference=True).mean("metric", "forget")
    assert found.value == pytest.approx((20 * 1.0 + 10 * 0.5) / 30)
    assert found.n == 60
    assert "1.00 covered" in found.reason


def test_a_reference_set_that_covers_less_than_half_of_the_labels_does_not_stand_in(
    make_evidence, make_model, make_scorecard
) -> None:
    card = make_scorecard(holdout=0, reference=90)
    card = card[(card["split"] == "train") | (card["stratum"] == "2")]
    found = make_evidence(make_model(scorecard=card), has_reference=True).mean("metric", "forget")
    assert found.status == "undefined"
    assert "covers 0.33" in found.reason


@pytest.mark.parametrize("column, bad", [("loss", math.nan), ("loss", math.inf), ("metric", math.nan)])
def test_one_non_finite_output_makes_the_whole_scorecard_undefined(
    make_evidence, make_model, make_scorecard, column: str, bad: float
) -> None:
    card = make_scorecard()
    card.loc[7, column] = bad
    found = make_evidence(make_model(scorecard=card)).mean("metric", "retain")
    assert (found.status, found.reason) == ("undefined", "non-finite outputs on 1 of 360 records")


def test_infinite_task_metrics_are_left_out_and_counted(make_evidence, make_model, make_scorecard) -> None:
    card = make_scorecard()  # a PSNR is infinite where the image is perfect
    card.loc[(card["site"] == "site-0") & (card["split"] == "holdout"), "metric"] = [math.inf, *[30.0] * 29]
    found = make_evidence(make_model(scorecard=card)).mean("metric", "forget")
    assert (found.value, found.n, found.reason) == (30.0, 29, "1 infinite values left out")


def test_differences_are_signed_paired_by_record_and_tighter_than_their_parts(
    make_evidence, make_model, make_scorecard
) -> None:
    card = make_scorecard()
    gold = make_model("retrain", scorecard=card.sample(frac=1, random_state=0))
    better = card.assign(metric=np.minimum(card["metric"] + (card.index % 10 == 0), 1))
    found = make_evidence(make_model(scorecard=better), gold)
    difference, plain = found.mean_difference("metric", "retain"), found.mean("metric", "retain")
    assert difference.value == pytest.approx(plain.value - found.of_gold.mean("metric", "retain").value)
    assert difference.value > 0
    assert difference.ci_high - difference.ci_low < plain.ci_high - plain.ci_low


def test_a_gold_model_with_an_infinite_loss_leaves_no_difference(make_evidence, make_model, make_scorecard) -> None:
    card = make_scorecard()
    broken = card.assign(loss=card["loss"].where(card.index != 5, math.inf))
    found = make_evidence(make_model(scorecard=card), make_model("retrain", scorecard=broken))
    assert "non-finite outputs on 1 of 360" in found.mean_difference("loss", "forget_train").reason


def test_two_infinite_metrics_differ_by_nothing(make_evidence, make_model, make_scorecard) -> None:
    card = make_scorecard().assign(metric=math.inf)
    found = make_evidence(make_model(scorecard=card), make_model("retrain", scorecard=card))
    assert found.mean_difference("metric", "forget").value == 0.0


def test_without_gold_differences_need_it(make_evidence, make_model) -> None:
    found = make_evidence(make_model())
    assert found.mean_difference("metric", "forget").reason == "needs gold"
    assert found.mean("kl", "forget").reason == "needs gold"


def test_records_missing_from_gold_or_the_comparison_are_said_not_skipped(
    make_evidence, make_model, make_scorecard, make_comparison
) -> None:
    card = make_scorecard()
    gold = make_model("retrain", scorecard=card.iloc[2:])
    partial = make_evidence(make_model(scorecard=card), gold, comparison=make_comparison(card).iloc[:-30])
    assert partial.mean_difference("loss", "forget_train").reason == "no finite value for 2 of 60 records"
    assert partial.mean("kl", "retain").reason == "no finite value for 30 of 90 records"


def test_a_record_scored_twice_is_an_error(make_evidence, make_model, make_scorecard) -> None:
    card = make_scorecard()
    doubled = make_evidence(make_model(scorecard=pd.concat([card, card.iloc[[3]]])))
    with pytest.raises(ValueError, match="twice"):
        doubled.mean("metric", "forget")


@pytest.mark.parametrize("granularity, num_unseen", [("client", 30), ("class", 40), ("sample", 120)])
def test_the_attack_compares_forget_records_with_held_out_ones_of_their_kind(
    make_evidence, make_model, make_scorecard, granularity: str, num_unseen: int
) -> None:
    found = make_evidence(make_model(scorecard=make_scorecard(granularity)), granularity=granularity)
    forget, unseen, note = found.attack_sets
    assert set(forget["split"]) == {"train"}
    assert forget["selected"].all()
    assert (set(unseen["split"]), len(unseen), note) == ({"holdout"}, num_unseen, "")


def test_a_sample_request_at_one_site_is_attacked_with_that_sites_holdout(
    make_evidence, make_model, make_scorecard
) -> None:
    card = make_scorecard("sample")
    card["selected"] &= card["site"] == "site-2"
    _, unseen, _ = make_evidence(make_model(scorecard=card), granularity="sample").attack_sets
    assert set(unseen["site"]) == {"site-2"}


def test_patients_on_both_sides_of_the_attack_are_counted(make_evidence, make_model, make_scorecard) -> None:
    card = make_scorecard().assign(patient=lambda c: c["site"])
    assert "1 of 1 forget patients" in make_evidence(make_model(scorecard=card)).attack_sets[2]


def test_without_holdout_the_attack_uses_reference_records_of_the_same_strata(
    make_evidence, make_model, make_scorecard
) -> None:
    card = make_scorecard("class", holdout=0, reference=60)
    found = make_evidence(make_model(scorecard=card), granularity="class", has_reference=True)
    _, unseen, note = found.attack_sets
    assert (len(unseen), set(unseen["stratum"])) == (20, {"0"})
    assert "reference" in note
