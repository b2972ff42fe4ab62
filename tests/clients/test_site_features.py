"""Features of a few records: which records, what they are, and that the model is left as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from clients.catalogue import OPERATIONS, TASKS
from clients.features import drawn, features_of, penultimate
from clients.ops import Call, perform
from clients.scoring import evaluating
from clients.site import Site, refused_operations
from partitions.errors import BadInput, Refused
from unlearning.state import State

MakeSite = Callable[..., Site]
Initial = Callable[..., State]


def values(table: pd.DataFrame) -> np.ndarray:
    return table.filter(regex=r"^f\d+$").to_numpy()


def built(state: State, model: str = "cnn") -> nn.Module:
    module = TASKS.get("classification").build(model, (10, 10), 3)
    state.load_into(module)
    return module.eval()


class TestPenultimate:
    def test_of_the_cnn_it_is_what_comes_before_the_last_layer(self, make_site: MakeSite, initial: Initial) -> None:
        site, state = make_site(), initial()
        table = features_of(site, state, 5, "class:1")
        where = [list(site.holdout.table["record"]).index(record) for record in table["record"]]
        x = TASKS.get("classification").to_inputs(site.holdout.inputs[site.holdout.indices[where]])
        with torch.no_grad():
            expected = built(state)[:-1](x)  # type: ignore[index]
        assert values(table).dtype == np.float32
        assert values(table) == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-5)

    @pytest.mark.parametrize("model", ["cnn", "resnet18"])
    def test_both_networks_have_512(self, make_site: MakeSite, initial: Initial, model: str) -> None:
        assert values(features_of(make_site(model=model), initial(model), 2, "class:1")).shape[1] == 512

    def test_the_model_is_left_as_it_was(self, initial: Initial) -> None:
        model, x = built(initial("resnet18"), "resnet18").train(), torch.zeros(3, 3, 32, 32)
        before, hooks = State.from_module(model).sha256(), [len(m._forward_pre_hooks) for m in model.modules()]
        with torch.no_grad(), evaluating(model):
            penultimate(model, x)
        assert State.from_module(model).sha256() == before
        assert [len(m._forward_pre_hooks) for m in model.modules()] == hooks
        assert all(m.training for m in model.modules())

    def test_no_hook_stays_on_a_model_that_fails(self) -> None:
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(5, 2))
        with pytest.raises(RuntimeError):
            penultimate(model, torch.zeros(4, 3))
        assert not any(m._forward_pre_hooks for m in model.modules())

    def test_the_last_to_run_counts_not_the_last_to_be_written(self) -> None:
        class Crossed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head, self.body = nn.Linear(4, 2), nn.Linear(3, 4)

            def forward(self, x: Tensor) -> Tensor:
                found: Tensor = self.head(self.body(x).relu())
                return found

        model, x = Crossed(), torch.ones(5, 3)
        assert torch.equal(penultimate(model, x), model.body(x).relu())

    @pytest.mark.parametrize("model", [nn.Conv2d(3, 2, 1), nn.Sequential(nn.Flatten(0, 2), nn.Linear(8, 2))])
    def test_a_network_without_one_says_what_to_do(self, model: nn.Module) -> None:
        with pytest.raises(BadInput, match=r"linear layer.*set features=0"):
            penultimate(model, torch.zeros(2, 3, 8, 8))

    def test_a_task_may_say_itself_what_its_features_are(
        self, make_site: MakeSite, initial: Initial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = lambda self, model, x: x.mean((2, 3))  # noqa: E731
        monkeypatch.setattr(type(TASKS.get("classification")), "features", own, raising=False)
        assert values(features_of(make_site(), initial(), 4)).shape == (4, 3)


class TestWhichRecords:
    def test_held_out_ones_of_both_sides_of_a_class_request(self, make_site: MakeSite, initial: Initial) -> None:
        table = features_of(make_site(holdout=20), initial(), 4, "class:1")
        assert set(table["split"]) == {"holdout"}
        assert (table["selected"] == (table["stratum"] == "1")).all()
        assert table["selected"].tolist() == sorted(table["selected"], reverse=True)
        assert table["selected"].value_counts().to_dict() == {True: 4, False: 4}
        assert list(table.columns[:6]) == ["record", "site", "split", "stratum", "selected", "f0"]
        assert set(table["site"]) == {"site-0"}

    def test_a_sample_request_has_its_removed_training_records(self, make_site: MakeSite, initial: Initial) -> None:
        site = make_site()
        table = features_of(site, initial(), 5, "sample:0.5", 3)
        removed = site.train.table["record"][site.select("sample:0.5", 3, "train").forget]
        forget, retain = table[table["selected"]], table[~table["selected"]]
        assert (len(forget), len(retain)) == (5, 5)
        assert set(forget["record"]) <= set(removed)
        assert set(retain["record"]) <= set(site.holdout.table["record"])

    def test_they_are_the_same_for_every_model_and_others_for_another_seed(
        self, make_site: MakeSite, initial: Initial
    ) -> None:
        site = make_site(holdout=40)
        one, two, other = (
            features_of(site, initial(seed=s), 6, "class:1", seed)["record"].tolist()
            for s, seed in ((0, 0), (1, 0), (0, 1))
        )
        assert one == two
        assert one != other

    def test_what_earlier_requests_forgot_is_on_neither_side(self, make_site: MakeSite, initial: Initial) -> None:
        table = features_of(make_site(holdout=30), initial(), 30, "class:0>class:1")
        assert set(table[table["selected"]]["stratum"]) == {"1"}
        assert set(table[~table["selected"]]["stratum"]) == {"2"}

    def test_a_site_without_any_says_so_with_an_empty_table(self, make_site: MakeSite, initial: Initial) -> None:
        table = features_of(make_site(holdout=0), initial(), 5, "class:1")
        assert list(table.columns) == ["record", "site", "split", "stratum", "selected"]
        assert table.empty

    @pytest.mark.parametrize("most", [0, -1])
    def test_a_number_below_one_does_not_mean_all(self, make_site: MakeSite, initial: Initial, most: int) -> None:
        with pytest.raises(BadInput, match="from 1"):
            features_of(make_site(), initial(), most, "class:1")

    def test_the_classes_take_turns(self) -> None:
        strata = ["a"] * 50 + ["b"] * 3 + ["c"] * 20
        table = pd.DataFrame({"record": [f"r{i}" for i in range(73)], "stratum": strata})
        found = table.loc[drawn(table, np.arange(73), 15, 0), "stratum"].value_counts().to_dict()
        assert found == {"a": 6, "b": 3, "c": 6}

    def test_a_larger_number_keeps_what_a_smaller_one_chose(self) -> None:
        table = pd.DataFrame({"record": [f"r{i}" for i in range(40)], "stratum": [str(i % 4) for i in range(40)]})
        few, many = (set(drawn(table, np.arange(40), n, 0)) for n in (7, 20))
        assert few < many
        assert set(drawn(table, np.arange(40), 99, 0)) == set(range(40))

    def test_only_candidates_are_chosen(self) -> None:
        table = pd.DataFrame({"record": [f"r{i}" for i in range(9)], "stratum": "0"})
        assert drawn(table, np.array([2, 5, 7]), 9, 0).tolist() == [2, 5, 7]
        assert drawn(table, np.array([], dtype=int), 9, 0).tolist() == []


class TestTheOperation:
    CALL: ClassVar = {"most": 3, "request": "class:1", "request-seed": 0}

    def test_it_answers_a_table(self, make_site: MakeSite, initial: Initial) -> None:
        site, state = make_site(), initial()
        reply = perform(OPERATIONS.get("features"), site, Call("features", state, self.CALL))
        pd.testing.assert_frame_equal(reply.tables["features"], features_of(site, state, 3, "class:1"))
        assert OPERATIONS.get("features").category == "evaluate"

    def test_a_site_that_refuses_says_so_before_and_when_asked_and_reads_nothing(
        self, make_site: MakeSite, initial: Initial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site = make_site()
        site.refuses = refused_operations(" features ,")
        monkeypatch.setattr(Site, "worker", property(lambda self: pytest.fail("it computed")))
        with pytest.raises(Refused, match=r"^site-0 refuses features \(`refuse` in its node config\)$"):
            perform(OPERATIONS.get("features"), site, Call("features", initial(), self.CALL))
        allowed = json.loads(str(site.describe()["allows"]))
        assert set(OPERATIONS.names()) - set(allowed) == {"features"}

    @pytest.mark.parametrize("name", ["describe", "feature"])
    def test_a_policy_names_operations_that_can_be_refused(self, name: str) -> None:
        with pytest.raises(BadInput, match=f"refuse='{name}': allowed is one of"):
            refused_operations(f"train,{name}")

    def test_no_policy_refuses_nothing(self) -> None:
        assert refused_operations("") == frozenset()
