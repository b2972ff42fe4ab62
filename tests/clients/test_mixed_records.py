"""Both record sets of a site in one order, or side by side."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest
import torch

from clients.forgetting import Records, Sets
from clients.site import Site
from clients.training import LocalPlan

MakeSite = Callable[..., Site]
PLAN = LocalPlan(lr=0.1, epochs=2, seed=5, batch_size=4)


def sets(site: Site, forget: int, retain: int) -> Sets:
    """Return the first records as forget and the next ones as retain, with gaps between them."""
    chosen = site.train.indices
    return Sets(
        Records(site, chosen[: 2 * forget : 2], "forget"), Records(site, chosen[1 : 2 * retain + 1 : 2], "retain")
    )


def pixel(x: torch.Tensor) -> list[float]:
    """Return something by which a record is known."""
    return [round(float(image.double().mul(torch.arange(image.numel()).view(image.shape)).sum()), 3) for image in x]


class TestMixed:
    def test_every_record_is_there_once_and_marked(self, make_site: MakeSite) -> None:
        both = sets(make_site(), 5, 9)
        records, marks = both.mixed()
        assert sorted(records.indices) == sorted([*both.forget.indices, *both.retain.indices])
        assert set(records.indices[marks]) == set(both.forget.indices)
        assert marks.dtype == bool and len(marks) == 14

    def test_one_shuffled_order_mixes_them(self, make_site: MakeSite) -> None:
        records, marks = sets(make_site(), 7, 7).mixed()
        batches = [mark for epoch in records.labelled(marks, PLAN) for _, mark in epoch]
        assert sum(int(mark.sum()) for mark in batches) == 2 * 7
        assert any(0 < int(mark.sum()) < len(mark) for mark in batches)

    def test_one_set_alone_is_itself(self, make_site: MakeSite) -> None:
        both = sets(make_site(), 6, 0)
        records, marks = both.mixed()
        assert records.indices.tolist() == both.forget.indices.tolist() and marks.all()

    def test_labels_stay_with_their_records(self, make_site: MakeSite) -> None:
        site = make_site()
        records, _ = sets(site, 5, 6).mixed()
        x, _ = site.worker.batch(site.train.inputs, site.train.targets, records.indices)
        known = dict(zip(records.indices.tolist(), pixel(x), strict=True))
        found = {
            int(label): value
            for epoch in records.labelled(records.indices, PLAN, 1)
            for x, label_ in epoch
            for label, value in zip(label_, pixel(x), strict=True)
        }
        assert found == known


class TestCycled:
    def test_every_turn_has_every_record_in_an_order_of_its_own(self, make_site: MakeSite) -> None:
        records = sets(make_site(), 8, 0).forget
        batches = list(islice(records.cycled(PLAN), 6))
        turns = [[p for x, _ in batches[i : i + 2] for p in pixel(x)] for i in (0, 2, 4)]
        assert sorted(turns[0]) == sorted(turns[1]) == sorted(turns[2])
        assert turns[0] != turns[1] != turns[2]

    def test_no_records_no_batches(self, make_site: MakeSite) -> None:
        assert list(sets(make_site(), 0, 3).forget.cycled(PLAN)) == []


class TestPaired:
    @pytest.mark.parametrize(("forget", "retain"), [(3, 10), (10, 3), (5, 9), (1, 9)])
    def test_there_is_a_pair_for_every_retain_batch_and_both_halves_are_as_long(
        self, make_site: MakeSite, forget: int, retain: int
    ) -> None:
        both = sets(make_site(), forget, retain)
        epochs = [list(epoch) for epoch in both.paired(PLAN)]
        wanted = [len(list(epoch)) for epoch in both.retain.epochs(PLAN)]
        assert [len(epoch) for epoch in epochs] == wanted and len(epochs) == 2
        assert all(len({len(part) for part in pair}) == 1 and len(pair) == 4 for epoch in epochs for pair in epoch)

    def test_the_halves_come_from_their_own_set(self, make_site: MakeSite) -> None:
        both = sets(make_site(), 4, 8)
        site = both.forget.site
        known = {
            name: set(pixel(site.worker.batch(site.train.inputs, site.train.targets, r.indices)[0]))
            for name, r in (("forget", both.forget), ("retain", both.retain))
        }
        pairs = [pair for epoch in both.paired(PLAN) for pair in epoch]
        assert {p for xf, *_ in pairs for p in pixel(xf)} == known["forget"]
        assert {p for _, _, xr, _ in pairs for p in pixel(xr)} == known["retain"]

    def test_a_set_alone_has_no_pairs(self, make_site: MakeSite) -> None:
        assert sets(make_site(), 4, 0).paired(PLAN) == sets(make_site(), 0, 4).paired(PLAN) == []
