"""What an unlearning step may open at a site, and in which batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from clients.forgetting import Records, Sets, unlearn_locally
from clients.ops import Call, Reply
from clients.site import Site
from clients.training import LocalPlan
from unlearning.local import LocalRun
from unlearning.state import State

MakeSite = Callable[..., Site]
Initial = Callable[..., State]
CONFIG = {"seed": 3, "lr": 0.05, "epochs": 2, "round": 1, "request": "class:1", "request-seed": 0}
PLAN = LocalPlan(lr=0.1, epochs=2, seed=5, batch_size=4)


def opened(site: Site, state: State, records: str, config: dict[str, object] | None = None) -> tuple[Reply, list[Sets]]:
    seen: list[Sets] = []

    def step(model: nn.Module, sets: Sets, plan: LocalPlan) -> LocalRun:
        seen.append(sets)
        return LocalRun("ok", "", 1, 2, 0.5)

    call = Call("toy", state, {**CONFIG, **(config or {})})
    return unlearn_locally(site, call, step, records), seen  # type: ignore[arg-type]


@pytest.mark.parametrize("records", ["forget", "retain", "both"])
def test_a_step_sees_the_records_it_asked_for(make_site: MakeSite, initial: Initial, records: str) -> None:
    site = make_site()
    reply, (sets,) = opened(site, initial(), records)
    forget, retain = site.records("forget", "class:1", 0), site.records("retain", "class:1", 0)
    assert len(sets.forget) == (0 if records == "retain" else len(forget))
    assert len(sets.retain) == (0 if records == "forget" else len(retain))
    assert reply.metrics["num-examples"] == len(sets.forget) + len(sets.retain)
    assert (reply.metrics["num-forget"], reply.metrics["num-retain"]) == (len(forget), len(retain))


def test_what_an_earlier_request_forgot_is_in_neither(make_site: MakeSite) -> None:
    site = make_site()
    gone = set(site.records("forget", "class:1", 0))
    both = set(site.records("both", "class:1>class:2", 0))
    assert gone and not gone & both and len(both) + len(gone) == len(site.train)


def test_a_site_without_such_records_does_nothing(make_site: MakeSite, initial: Initial) -> None:
    reply, seen = opened(make_site(), initial(), "forget", {"request": "client:elsewhere"})
    assert reply.state is None and not seen


class TestRecords:
    def test_every_epoch_has_every_record_with_what_belongs_to_it(self, make_site: MakeSite) -> None:
        site = make_site()
        records = Records(site, site.train.indices[3:14], "forget")
        epochs = records.epochs(PLAN, also=np.arange(len(records)))
        assert len(epochs) == 2
        for epoch in epochs:
            parts = list(epoch)
            marks = torch.cat([part[2] for part in parts])
            assert sorted(marks.tolist()) == list(range(11))
            assert torch.equal(torch.cat([part[1] for part in parts]), torch.tensor(records.targets())[marks])

    def test_the_two_sets_are_ordered_by_streams_of_their_own(self, make_site: MakeSite) -> None:
        site = make_site()
        orders = [
            torch.cat([part[2] for part in Records(site, site.train.indices, name).epochs(PLAN, 1, np.arange(30))[0]])
            for name in ("forget", "retain")
        ]
        assert not torch.equal(*orders)

    def test_no_records_no_batches(self, make_site: MakeSite) -> None:
        assert Records(make_site(), np.zeros(0, np.int64), "forget").epochs(PLAN) == []

    def test_ids_are_those_of_the_table(self, make_site: MakeSite) -> None:
        site = make_site()
        assert Records(site, site.train.indices[[2, 5]], "forget").ids() == list(
            site.table("train")["record"].iloc[[2, 5]]
        )

    def test_a_sample_is_a_share_and_depends_on_the_seed(self, make_site: MakeSite) -> None:
        records = Records(make_site(), np.arange(30), "retain")
        a, b, c = records.sample(0.3, 1), records.sample(0.3, 1), records.sample(0.3, 2)
        assert len(a) == 9 and set(a.indices) <= set(range(30))
        assert a.indices.tolist() == b.indices.tolist() != c.indices.tolist()
        assert len(records.sample(1e-9, 0)) == 1
