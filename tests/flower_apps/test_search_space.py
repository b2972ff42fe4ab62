"""What a search tries: checked before anything runs, the same sequence whenever it is asked again."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from flower_apps.manifest import load_manifest
from flower_apps.preflight import check_groups
from flower_apps.search_space import Range, proposals_of, spaces_of, trials_per_method
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput

GRID = {"fedquit": {"lr": [0.1, 0.01], "temperature": [1, 2, 4]}}
FREE = {
    "fedquit": {
        "lr": {"low": 1e-4, "high": 0.1, "log": True},
        "epochs": {"low": 1, "high": 9, "step": 2},
        "scale-t2": [True, False],
        "optimizer": ["sgd", "adam"],
    }
}


def asked(search: Any, **changes: Any) -> GroupSettings:
    text = search if isinstance(search, str) else json.dumps(search)
    given = {key.replace("_", "-"): value for key, value in changes.items()}
    return GroupSettings.parse({"methods": "ga,fedquit,pga", "search": text, **given})


def sequence(settings: GroupSettings, count: int, score: Any, method: str = "fedquit") -> list[dict[str, Any]]:
    proposals = proposals_of(spaces_of(settings)[method], settings)
    found = []
    for _ in range(count):
        found.append(proposals.ask())
        proposals.tell(score(found[-1]))
    return found


def test_a_grid_is_walked_in_the_order_written_the_last_setting_fastest() -> None:
    found = sequence(asked(GRID), 6, lambda _: 0.0)
    assert [(one["lr"], one["temperature"]) for one in found] == [
        (0.1, 1),
        (0.1, 2),
        (0.1, 4),
        (0.01, 1),
        (0.01, 2),
        (0.01, 4),
    ]


def test_a_capped_grid_is_a_draw_of_the_whole_grid_in_its_order() -> None:
    whole = sequence(asked(GRID), 6, lambda _: 0.0)
    drawn = [sequence(asked(GRID, search_trials=3, search_seed=seed), 3, lambda _: 0.0) for seed in range(8)]
    assert all(sorted(one, key=whole.index) == one and len({str(v) for v in one}) == 3 for one in drawn)
    assert len({str(one) for one in drawn}) > 1, "another seed draws others"
    assert any(one["lr"] == 0.01 for found in drawn for one in found)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_the_same_scores_give_the_same_trials_again(sampler: str) -> None:
    settings = asked(FREE, search_sampler=sampler, search_trials=9)

    def score(values: dict[str, Any]) -> float:
        return math.nan if values["epochs"] == 5 else -abs(math.log10(values["lr"]) + 2)

    first, again = (sequence(settings, 9, score) for _ in range(2))
    assert first == again
    assert first != sequence(asked(FREE, search_sampler=sampler, search_trials=9, search_seed=1), 9, score)
    for values in first:
        assert 1e-4 <= values["lr"] <= 0.1
        assert values["epochs"] in (1, 3, 5, 7, 9) and type(values["epochs"]) is int
        assert values["scale-t2"] in (True, False) and values["optimizer"] in ("sgd", "adam")


def test_tpe_goes_by_what_it_is_told() -> None:
    settings = asked(FREE, search_sampler="tpe", search_trials=12)
    low, high = (sequence(settings, 12, lambda v, s=sign: s * math.log10(v["lr"])) for sign in (-1, 1))
    assert low[:4] == high[:4], "a third is drawn at random"
    assert sum(math.log10(v["lr"]) for v in low[4:]) < sum(math.log10(v["lr"]) for v in high[4:])


def test_another_searched_method_changes_no_proposal() -> None:
    settings = [asked(FREE | more, search_sampler="tpe") for more in ({}, {"ga": {"max-norm": [1, 5]}})]
    one, other = (sequence(each, 5, lambda v: v["lr"]) for each in settings)
    assert one == other


def test_trials_are_counted_per_method() -> None:
    both = GRID | {"ga": {"max-norm": [1, 5]}}
    assert trials_per_method(asked(both)) == {"ga": 2, "fedquit": 6}
    assert trials_per_method(asked(both, search_trials=4)) == {"ga": 2, "fedquit": 4}
    assert trials_per_method(asked(FREE, search_sampler="random")) == {"fedquit": 16}
    assert trials_per_method(GroupSettings()) == {}


@pytest.mark.parametrize(
    ("search", "told"),
    [
        ({"fedquti": {"lr": [1]}}, "did you mean 'fedquit'"),
        ({"puf": {"eta": [1]}}, "allowed is one of fedquit, ga, pga"),
        ({"fine-tuning": {"recovery-max-norm": [1]}}, "allowed is one of fedquit, ga, pga"),
        ({"ga": {"max-nrom": [1]}}, "did you mean 'max-norm'"),
        ({"ga": {"lr": [0.1]}}, "search.ga='lr'"),
        ({"ga": {"max-norm": [5, -1]}}, "search.ga.max-norm=-1: allowed is a number from 0 up"),
        ({"ga": {"max-norm": [True]}}, "search.ga.max-norm=True"),
        ({"ga": {"max-norm": [1, 1.0]}}, "each value once"),
        ({"ga": {"max-norm": []}}, "at least one value"),
        ({"ga": {"max-norm": 5}}, "a list of values, or a mapping such as"),
        ({"ga": {}}, "at least one setting"),
        ({"ga": {"bn-mode": {"low": 0, "high": 1}}}, "a list of values, since bn-mode is one of eval, train"),
        ({"ga": {"max-norm": {"low": 1, "high": 1, "step": 1}}}, "above low"),
        ({"ga": {"max-norm": {"low": 1}}}, "search.ga.max-norm.high=None: allowed is a number"),
        ({"ga": {"max-norm": {"low": 1, "hihg": 2}}}, "did you mean 'high'"),
        ({"ga": {"max-norm": {"low": 0, "high": 1, "log": True}}}, "above 0, since log is true"),
        ({"ga": {"max-norm": {"low": 1, "high": 2, "log": True, "step": 1}}}, "nothing, since steps are even"),
        ({"ga": {"max-norm": {"low": 1, "high": 2, "step": 3}}}, "up to 1, from low to high"),
        ({"ga": {"max-norm": {"low": -1, "high": 2, "step": 1}}}, "a number from 0 up"),
        ({"ga": {"max-norm": {"low": 0, "high": 2}}}, "with search-sampler=grid"),
        ({"ga": {"max-norm": {"low": 0, "high": 2, "step": 1e-5}}}, "with search-sampler=grid"),
        ({"fedquit": {"epochs": {"low": 1, "high": 2.5}}}, "search.fedquit.epochs.high=2.5: allowed is a whole number"),
        ({"ga": {"max-norm": {"low": 0, "high": 2, "step": 1e-300}}}, "up to 1000000 different values"),
        ({"ga": {"max-norm": {"low": 1e16, "high": 1e16 + 8, "step": 0.5}}}, "up to 1000000 different values"),
        (
            {"ga": {"max-norm": {"low": 1e-320, "high": 1e308}}},
            "search.ga.max-norm.low=1e-320: allowed is 0, or a number of",
        ),
        ({"ga": {"max-norm": {"low": -1.7e308, "high": 1.7e308}}}, "search.ga.max-norm.high="),
        ({"ga": {"max-norm": {"low": 0, "high": 10**400}}}, "search.ga.max-norm.high="),
        ({"ga": {"max-norm": [10**400]}}, "2.23e-308 to 1.8e+308 in size"),
        ({"fedquit": {"epochs": {"low": 1, "high": 10**20}}}, "a whole number up to 9007199254740992 in size"),
        ("[1]", "a JSON object of objects"),
        ('{"ga": {"max-norm": [' + "9" * 5000 + "]}}", "a JSON object"),
        ("{", "a JSON object"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(search: Any, told: str) -> None:
    with pytest.raises(BadInput) as error:
        check_groups([asked(search)])
    assert told in str(error.value)


def test_steps_are_exact_whatever_their_size() -> None:
    values = Range(1e-14, 1e-13, step=3e-14).values
    assert values == (1e-14, 4e-14, 7e-14, 1e-13)
    assert Range(-0.3, 0.3, step=0.1).values == (-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_the_widest_ranges_that_are_taken_can_be_drawn_from(sampler: str) -> None:
    wide = {
        "fedquit": {
            "lr": {"low": 1e-300, "high": 1e300, "log": True},
            "temperature": {"low": 1, "high": 1.7e308},
            "epochs": {"low": 1, "high": 2**53},
        }
    }
    for values in sequence(asked(wide, search_sampler=sampler, search_trials=12), 12, lambda v: -v["lr"]):
        assert 1e-300 <= values["lr"] <= 1e300 and 1 <= values["epochs"] <= 2**53


def test_a_setting_may_be_none_where_its_field_may() -> None:
    settings = asked({"neggrad": {"momentum": [None, 0.9]}}, methods="neggrad")
    assert sequence(settings, 2, lambda _: 0.0, "neggrad") == [{"momentum": None}, {"momentum": 0.9}]


def test_a_manifest_says_it_in_yaml_and_set_replaces_it(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "a:\n  methods: [ga, fedquit]\n  search:\n    ga: {max-norm: [1, 5]}\n"
        "    fedquit: {lr: {low: 1e-3, high: 0.1, log: true}}\n  search-sampler: tpe\n"
        "b:\n  extends: a\n  search: [{ga: {max-norm: [1]}}, {ga: {max-norm: [2]}}]\n"
    )
    manifest = load_manifest(path)
    (group,) = manifest.groups(["a"])
    assert group.searched() == {"ga": {"max-norm": [1, 5]}, "fedquit": {"lr": {"low": 1e-3, "high": 0.1, "log": True}}}
    assert list(group.searched()["ga"]) == ["max-norm"]
    assert [one.searched()["ga"]["max-norm"] for one in manifest.groups(["b"])] == [[1], [2]]
    (changed,) = manifest.groups(["a"], ["search={ga: {max-norm: [3]}}"])
    assert changed.searched() == {"ga": {"max-norm": [3]}}
