"""Facts about what recorded updates say, on rounds small enough to compute by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from evaluation.rounds import RunHistory
from evaluation.updates import agreement, contributions, cosines, layer_distances, left_out, norms
from partitions.errors import BadInput
from strategies.history import HistoryWriter, RoundRecord, SiteRecord
from unlearning.state import State, Update, apply_updates


def state(**layers: list[float]) -> State:
    return State({f"{name}.weight": torch.tensor(values) for name, values in layers.items()}, {}, {})


def update(**layers: list[float]) -> Update:
    return Update(state(**layers).params, {})


@pytest.fixture
def history(tmp_path: Path) -> RunHistory:
    """Two rounds: in the first a pushes along x and b along y, in the second b is absent and c pulls back."""
    writer = HistoryWriter(tmp_path)
    start = state(low=[0.0, 0.0], high=[1.0])
    pushes = [
        {"a": (0.75, update(low=[4.0, 0.0], high=[0.0])), "b": (0.25, update(low=[0.0, 4.0], high=[0.0]))},
        {"a": (0.5, update(low=[3.0, 4.0], high=[2.0])), "c": (0.5, update(low=[-1.0, 0.0], high=[0.0]))},
    ]
    for number, sites in enumerate(pushes, start=1):
        after = apply_updates(start, [push for _, push in sites.values()], [weight for weight, _ in sites.values()])
        record = RoundRecord(number, 0.1, 1.0, sites={site: SiteRecord(weight=w) for site, (w, _) in sites.items()})
        writer.write(record, start, after, {site: push for site, (_, push) in sites.items()})
        start = after
    return RunHistory(tmp_path, "original trained", lambda _: torch.nn.Identity())


def test_norms_are_those_of_whole_updates(history: RunHistory) -> None:
    table = norms(history).set_index(["round", "site"])
    assert table.loc[(1, "a"), "norm"] == 4.0
    assert table.loc[(2, "a"), "norm"] == pytest.approx(math.sqrt(29))
    assert table.loc[(1, "b"), "weight"] == 0.25
    assert set(table.index) == {(1, "a"), (1, "b"), (2, "a"), (2, "c")}


def test_cosines_are_symmetric_and_one_with_itself(history: RunHistory) -> None:
    first, second = (cosines(one) for one in history)
    assert first.loc["a", "b"] == 0.0
    assert first.loc["a", "a"] == 1.0
    assert second.loc["a", "c"] == second.loc["c", "a"] == pytest.approx(-3 / math.sqrt(29))


def test_agreement_is_with_the_others_not_with_oneself(history: RunHistory) -> None:
    table = agreement(history).set_index(["round", "site"])["cosine"]
    assert table[1, "a"] == 0.0
    assert table[2, "a"] == pytest.approx(-3 / math.sqrt(29))


def test_shares_of_a_layer_sum_to_one_and_may_be_negative(history: RunHistory) -> None:
    table = contributions(history)
    low = table[table["layer"] == "low"].set_index(["round", "site"])
    # round 1: aggregate (3, 1); a's part (3, 0), b's (0, 1)
    assert low.loc[(1, "a"), "share"] == pytest.approx(0.9)
    assert low.loc[(1, "b"), "share"] == pytest.approx(0.1)
    assert low.loc[(1, "a"), "step"] == pytest.approx(math.sqrt(10))
    # round 2: aggregate (1, 2); c's part (-0.5, 0)
    assert low.loc[(2, "c"), "share"] == pytest.approx(-0.1)
    high = table[table["layer"] == "high"].set_index(["round", "site"])
    assert math.isnan(high.loc[(1, "a"), "share"])
    assert high.loc[(2, "a"), "share"] == 1.0
    moved = table[table["step"] > 0].groupby(["round", "layer"])["share"].sum()
    assert moved.tolist() == pytest.approx([1.0] * len(moved))


def test_what_a_round_would_have_been_without_a_site(history: RunHistory) -> None:
    (row,) = left_out(history, "b").to_dict("records")
    assert row["round"] == 1
    assert row["share"] == 0.25
    assert row["step"] == pytest.approx(math.sqrt(10))
    assert row["step_without"] == 4.0
    assert row["cosine"] == pytest.approx(3 / math.sqrt(10))
    with pytest.raises(BadInput, match="a site that trained beside others: a, b, c"):
        left_out(history, "nobody")


def test_left_out_is_what_a_round_without_the_site_is(history: RunHistory) -> None:
    for one in history:
        for site in one.sites:
            table = left_out([one], site)
            alone = one.without(site).params["low.weight"] - one.before.params["low.weight"]
            high = one.without(site).params["high.weight"] - one.before.params["high.weight"]
            assert table["step_without"].iloc[0] == pytest.approx(float(torch.cat([alone, high]).norm()))


def test_distances_by_layer(history: RunHistory) -> None:
    reference = state(low=[3.0, 4.0], high=[0.0])
    table = layer_distances({"m": state(low=[3.0, 5.0], high=[2.0])}, reference).set_index("layer")
    assert table.loc["low", "distance"] == 1.0
    assert table.loc["low", "relative"] == pytest.approx(0.2)
    assert table.loc["high", "distance"] == 2.0
    assert math.isnan(table.loc["high", "relative"])
    with pytest.raises(BadInput, match="the parameters of the reference"):
        layer_distances({"m": state(low=[1.0])}, reference)
