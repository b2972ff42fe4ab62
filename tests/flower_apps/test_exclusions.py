"""What `exclude` takes out: groups by their settings, cells by method and request; and what it refuses."""

import json
from pathlib import Path

import pytest

from flower_apps.cells import cells_of, methods_by_request
from flower_apps.manifest import load_manifest
from flower_apps.multiply import _rules
from flower_apps.preflight import check_groups
from flower_apps.settings import GroupSettings
from partitions.errors import BadInput

BASE = (
    "methods: [ga, fedquit], requests: [client:patient-1, class:5, [client:patient-1, class:0]], "
    "alpha: [0.1, 1], split: dirichlet, sites: [3, 4]"
)


@pytest.fixture
def groups(tmp_path):
    def read(exclude, sets=(), base=BASE):
        path = tmp_path / "mine.yaml"
        path.write_text(f"a: {{{base}, exclude: {exclude}}}", encoding="utf-8")
        return load_manifest(path).groups(["a"], sets)

    return read


def settings(**values):
    flat = {"methods": "ga,fedquit", "requests": "client:patient-1; class:5"}
    return GroupSettings.parse({**flat, **values})


# groups
@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ("[]", [(0.1, 3), (0.1, 4), (1.0, 3), (1.0, 4)]),
        ("[{alpha: 1}]", [(0.1, 3), (0.1, 4)]),
        ("[{alpha: '0.1'}]", [(1.0, 3), (1.0, 4)]),
        ("[{alpha: 1, sites: 3}]", [(0.1, 3), (0.1, 4), (1.0, 4)]),
        ("[{alpha: 1, sites: [3, 4]}, {sites: 3}]", [(0.1, 4)]),
        ("[{alpha: 1, dataset: lung-ct}]", [(0.1, 3), (0.1, 4)]),
    ],
)
def test_a_combination_that_fits_an_entry_makes_no_group(groups, exclude, left):
    found = groups(exclude)
    assert [(group.alpha, group.sites) for group in found] == left
    assert all(group.exclude == "" for group in found)


# cells
def test_an_entry_with_a_method_or_a_request_takes_out_cells_of_the_groups_it_fits(groups):
    found = groups("[{alpha: 1, sites: 4, method: ga, request: ' class:05 '}, {sites: 4, method: [fedquit]}]")
    assert [json.loads(group.exclude or "[]") for group in found] == [
        [],
        [{"method": ["fedquit"]}],
        [],
        [{"method": ["ga"], "request": ["class:5"]}, {"method": ["fedquit"]}],
    ]
    check_groups(found)


def test_a_list_within_request_is_a_sequence_as_in_requests(groups):
    for written in ("[[client:patient-1, class:0]]", "client:patient-1>class:0"):
        group = groups(f"[{{method: ga, request: {written}}}]")[0]
        assert methods_by_request(group) == {
            "client:patient-1": ["fine-tuning", "ga", "fedquit"],
            "class:5": ["fine-tuning", "ga", "fedquit"],
            "client:patient-1 > class:0": ["fine-tuning", "fedquit"],
        }


def test_an_entry_with_a_request_alone_takes_it_out_with_everything(groups):
    group = groups("[{request: class:5}]")[0]
    assert list(methods_by_request(group)) == ["client:patient-1", "client:patient-1 > class:0"]


def test_without_exclusions_every_method_is_on_every_request():
    every = ["fine-tuning", "ga", "fedquit"]
    assert methods_by_request(settings()) == {"client:patient-1": every, "class:5": every}


def test_a_step_of_a_sequence_has_its_cells_even_where_the_step_alone_is_left_out():
    group = settings(
        requests="client:patient-1; client:patient-1 > class:5",
        exclude='[{"method": "ga", "request": "client:patient-1"}]',
        **{"unlearn-seeds": "0,1"},
    )
    cells = cells_of(group)
    assert len(cells) == len(set(cells)) == 2 * 2 * 5
    assert ("client:patient-1", "ga", 1) in cells


def test_the_cells_of_a_group_have_gold_the_original_and_the_control():
    cells = cells_of(settings(exclude='[{"method": "ga", "request": "class:5"}]'))
    assert {method for request, method, _ in cells if request == "class:5"} == {
        "original",
        "retrain",
        "fine-tuning",
        "fedquit",
    }


# --set
def test_set_narrows_an_experiment_and_exclusions_of_what_is_gone_go_with_it(groups):
    assert groups("[{alpha: 1}]", ["alpha=0.1", "sites=3"])[0].alpha == 0.1
    assert groups("[{method: ga}]", ["methods=fedquit"])[0].exclude == ""
    (group,) = groups("[{method: [ga, fedquit], request: class:5}]", ["methods=ga", "alpha=1", "sites=3"])
    assert json.loads(group.exclude) == [{"method": ["ga"], "request": ["class:5"]}]


def test_set_replaces_exclusions_and_what_it_says_is_checked(groups):
    assert len(groups("[{alpha: 1}]", ["exclude=[]"])) == 4
    assert len(groups("[{alpha: 1}]", ["exclude=[{sites: 3, alpha: 1}]"])) == 3
    with pytest.raises(BadInput, match="did you mean 'fedquit'"):
        groups("[]", ["exclude=[{method: fedquitt}]"])


# mistakes
@pytest.mark.parametrize(
    ("exclude", "says"),
    [
        ("{method: ga}", r"a\.exclude.*a list of mappings"),
        ("[{}]", r"a\.exclude.*a list of mappings"),
        ("[ga]", r"a\.exclude.*a list of mappings"),
        ("[{alhpa: 1}]", r"a\.exclude: setting='alhpa'.*did you mean 'alpha'"),
        ("[{alpha: 2}]", r"a\.exclude: alpha='2\.0'.*one of 0\.1, 1\.0"),
        ("[{alpha: x}]", r"a\.exclude: alpha='x'.*a number above 0"),
        ("[{alpha: []}]", r"a\.exclude: alpha.*at least one value"),
        ("[{alpha: [1, 2]}]", r"a\.exclude: alpha='2\.0'"),
        ("[{dataset: lung-c}]", r"a\.exclude: dataset='lung-c'.*did you mean 'lung-ct'"),
        ("[{method: gaa}]", r"a\.exclude: method='gaa'.*did you mean 'ga'"),
        ("[{method: retrain}]", r"a\.exclude: method='retrain'.*every table has these"),
        ("[{method: fine-tuning, alpha: 1}]", r"a\.exclude: method='fine-tuning'.*every table has these"),
        ("[{method: original}]", r"a\.exclude: method='original'.*every table has these"),
        ("[{method: }]", r"a\.exclude.*a text each"),
        ("[{method: []}]", r"a\.exclude.*a text each"),
        ("[{request: class:4}]", r"a\.exclude: request='class:4'.*did you mean 'class:5'"),
        ("[{request: klass:5}]", r"a\.exclude: request='klass'.*did you mean 'class'"),
        ("[{methods: ga}]", r"a\.exclude='methods'.*say method"),
        ("[{requests: class:5}]", r"say request"),
        ("[{unlearn-seeds: 0}]", r"a group has all its seeds"),
        ("[{extends: b}]", r"a\.exclude='extends'"),
        ("[{jobs: 2}]", r"use --jobs"),
        ("[{alpha: [0.1, 1]}]", r"a\.exclude.*exclusions that leave a group"),
        ("text", r"a\.exclude='text'.*a list of mappings"),
    ],
)
def test_what_fits_nothing_or_leaves_nothing_is_refused(groups, exclude, says):
    with pytest.raises(BadInput, match=says) as caught:
        groups(exclude)
    assert "\n" not in str(caught.value)


def test_values_that_are_there_but_not_in_one_group_are_refused():
    (rule,) = _rules([{"alpha": 1, "sites": 3}], "a", Path())
    with pytest.raises(BadInput, match="a combination of values that the experiment has"):
        rule.check([settings(alpha=1, sites=4), settings(alpha=2, sites=3)], "a")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x", "a JSON list of objects"),
        ("{}", "a JSON list of objects"),
        ("[1]", "a JSON list of objects"),
        ("[{}]", "a JSON list of objects"),
        ('[{"alpha": 1}]', "an entry has method, request or both"),
        ('[{"method": 3}]', "a text each"),
        ('[{"request": "klass:5"}]', "did you mean 'class'"),
        ("[" * 5000, "a JSON list of objects"),
    ],
)
def test_the_flat_setting_is_checked_as_it_is_read(text, says):
    with pytest.raises(BadInput, match=says):
        settings(exclude=text)


@pytest.mark.parametrize(
    ("exclude", "says"),
    [
        ([{"method": "fedquitt"}], "exclude: method='fedquitt'.*did you mean 'fedquit'"),
        ([{"request": "class:4"}], "exclude: request='class:4'.*did you mean 'class:5'"),
        ([{"method": "retrain"}], "every table has these"),
        ([{"method": ["ga", "fedquit"]}], "exclusions that leave a method on a request"),
        ([{"request": ["class:5", "client:patient-1"]}], "exclusions that leave a method on a request"),
        ([{"method": "ga"}, {"request": "class:5"}, {"method": "fedquit"}], "that leave a method on a request"),
    ],
)
def test_a_group_refuses_before_anything_starts(exclude, says):
    with pytest.raises(BadInput, match=says):
        check_groups([settings(exclude=json.dumps(exclude))])


def test_a_method_may_be_left_out_of_every_request_that_it_can_do():
    left_out = [{"method": "federaser", "request": "client:patient-1"}]
    with pytest.raises(BadInput, match="at least one of the requests"):
        check_groups([settings(methods="ga,federaser", exclude=json.dumps(left_out))])
    check_groups([settings(methods="ga,federaser", exclude='[{"method": "federaser"}]')])
