import json

import pytest

from flower_apps.experiment import Budget
from flower_apps.manifest import default_manifest, load_manifest
from flower_apps.preflight import check_experiments
from flower_apps.settings import GroupSettings
from flower_apps.strict_yaml import read_yaml
from partitions.errors import BadInput


@pytest.fixture
def groups(tmp_path):
    def read(text, *names, sets=()):
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return load_manifest(path).groups(names or ["a"], sets)

    return read


# YAML as people mean it
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("3", 3),
        ("'3'", "3"),
        ("012", 12),
        ("yes", "yes"),
        ("off", "off"),
        ("true", True),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("client:patient-1", "client:patient-1"),
        ("~", None),
        ("[1e-3, no]", [1e-3, "no"]),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    found = read_yaml(f"key: {text}", "f.yaml")["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a:\n  lr: 1\n  rounds: 2\n  lr: 2\n", 4),
        ("a: {x: 1,\n x: 2}\n", 2),
        ("- {b: 1, b: 1}\n", 1),
        ("x: &base {lr: 1}\ny:\n  <<: *base\n  k: 1\n  k: 2\n", 5),
    ],
)
def test_a_key_written_twice_is_refused_with_its_line(text, line):
    with pytest.raises(BadInput, match="each key once") as caught:
        read_yaml(text, "f.yaml")
    assert caught.value.key == f"f.yaml:{line}"


def test_a_merged_mapping_may_be_overridden():
    assert read_yaml("x: &b {lr: 1, k: 2}\ny:\n  <<: *b\n  lr: 3\n", "f")["y"] == {"lr": 3, "k": 2}


@pytest.mark.parametrize("text", ["a: [1, 2", "a: b: c", "a:\n\tb: 1", "a: !!python/object:os.system x", "a: *none"])
def test_what_is_not_plain_yaml_is_one_line_with_its_place(text):
    with pytest.raises(BadInput, match=r"f\.yaml:\d") as caught:
        read_yaml(text, "f.yaml")
    assert "\n" not in str(caught.value)


# experiments
def test_an_experiment_is_the_defaults_with_its_own_values(groups):
    assert groups("a: {lr: 1e-4, train-seed: '3'}") == [GroupSettings.parse({"name": "a", "lr": 1e-4, "train-seed": 3})]


def test_a_list_makes_one_group_for_each_combination(groups):
    found = groups("a: {train-seed: [0, 1], alpha: [0.1, 0.5, 1]}")
    assert [(g.train_seed, g.alpha) for g in found] == [(s, a) for s in (0, 1) for a in (0.1, 0.5, 1.0)]


def test_methods_requests_and_seeds_are_lists_within_a_group(groups):
    (group,) = groups(
        "a:\n  methods: [ga, fedquit]\n  unlearn-seeds: [0, 1]\n  evaluate-seeds: 5\n"
        "  requests: ['client:patient-1,patient-3', class:5]\n"
    )
    assert group.method_names() == ["ga", "fedquit"]
    assert group.request_texts() == ["client:patient-1,patient-3", "class:5"]
    assert (group.seeds("unlearn"), group.seeds("evaluate")) == ([0, 1], [5])


def test_a_list_within_requests_is_a_sequence(groups):
    (group,) = groups("a: {requests: [[client:patient-1, class:5], class:0]}")
    assert group.request_texts() == ["client:patient-1 > class:5", "class:0"]


def test_methods_may_carry_their_settings(groups):
    (group,) = groups("a: {methods: {ga: {max-norm: 5}, fedquit: }}")
    assert group.method_names() == ["ga", "fedquit"]
    assert group.method_overrides() == {"ga": {"max-norm": 5}}


def test_extends_takes_over_what_is_not_written_again(groups):
    base = "base: {rounds: 3, methods: {ga: {max-norm: 5}}}\n"
    (group,) = groups(base + "mid: {extends: base, lr: 0.5}\na: {extends: mid, methods: [ga]}")
    assert (group.name, group.rounds, group.lr, group.overrides) == ("a", 3, 0.5, "")


@pytest.mark.parametrize(("below", "reports"), [("", True), ("report: false", False)])
def test_whether_a_run_ends_with_a_report_is_taken_over_too_and_computes_nothing_else(tmp_path, below, reports):
    path = tmp_path / "mine.yaml"
    path.write_text(f"base:\n  report: true\na:\n  extends: base\n  {below}\n", encoding="utf-8")
    found = load_manifest(path)
    assert (found.get("base").report, found.get("a").report) == (True, reports)
    assert found.groups(["a"]) == [GroupSettings.parse({"name": "a"})]


def test_a_report_is_wanted_or_not(groups):
    with pytest.raises(BadInput, match=r"a\.report.*true or false"):
        groups("a: {report: html}")


def test_of_several_parents_the_later_wins_and_the_own_keys_over_all(groups):
    text = "b: {rounds: 3, lr: 1, cap: 7}\nc: {rounds: 4, lr: 2}\na: {extends: [b, c], lr: 3}"
    (group,) = groups(text)
    assert (group.rounds, group.lr, group.cap) == (4, 3.0, 7)


def test_a_long_chain_and_a_wide_lattice_of_parents_are_each_merged_once(groups):
    chain = ["e0: {rounds: 3}", *(f"e{n}: {{extends: e{n - 1}}}" for n in range(1, 1200))]
    assert groups("\n".join(chain), "e1199")[0].rounds == 3
    lattice = ["a0: {rounds: 3}", "b0: {rounds: 4}"]
    for n in range(1, 60):
        lattice += [f"a{n}: {{extends: [a{n - 1}, b{n - 1}]}}", f"b{n}: {{extends: [b{n - 1}, a{n - 1}]}}"]
    assert groups("\n".join(lattice), "a59")[0].rounds == groups("\n".join(lattice), "a1")[0].rounds


def test_letters_of_any_language_name_an_experiment(groups):
    assert groups("Früh.1_a-b: {}\na: {}", "Früh.1_a-b")[0].name == "Früh.1_a-b"


def test_a_common_ancestor_comes_in_where_each_parent_does(groups):
    (group,) = groups("z: {lr: 1}\nb: {extends: z, lr: 2}\nc: {extends: z}\na: {extends: [b, c]}")
    assert group.lr == 1.0


def test_tags_budget_and_report_are_taken_over_whole_and_a_description_is_not(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "b: {description: x, tags: [big, big], budget: {hours: 2, disk-gb: 5.5}, report: true}\n"
        "a: {extends: b}\nc: {extends: b, tags: [], budget: {memory-gb: 1}}"
    )
    found = load_manifest(path)
    a, c = found.get("a"), found.get("c")
    assert (a.description, a.tags, a.report, a.budget) == ("", ("big",), True, Budget(hours=2.0, disk_gb=5.5))
    assert (c.tags, c.budget) == ((), Budget(memory_gb=1.0))
    assert (a.budget.to_json(), c.budget.to_json()) == ({"hours": 2.0, "disk-gb": 5.5}, {"memory-gb": 1.0})
    assert found.groups(["a"]) == [GroupSettings.parse({"name": "a"})]


def test_a_part_is_checked_and_extended_but_neither_listed_nor_run(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("_part: {rounds: 3, exclude: [{alpha: 7}]}\na: {extends: _part, alpha: [7, 8]}")
    found = load_manifest(path)
    assert (list(found.experiments), found.default(), found.groups(["a"])[0].rounds) == (["a"], "a", 3)
    with pytest.raises(BadInput, match=r"experiment='_part'.*there to be extended"):
        found.groups(["_part"])


def test_tags_choose_experiments_beside_names(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("quickstart: {}\nb: {tags: [x]}\nc: {tags: [y, x]}\nd: {tags: [y]}")
    found = load_manifest(path)
    assert found.choose([]) == ["quickstart"]
    assert found.choose([], ["x"]) == ["b", "c"]
    assert found.choose(["d", "c"], ["x"]) == ["d", "c", "b"]
    assert found.choose([], ["y", "x"]) == ["b", "c", "d"]
    with pytest.raises(BadInput, match=r"--tag='z'.*one of x, y"):
        found.choose(["d"], ["z"])


def test_the_seeds_of_one_train_seed_are_one_group_and_multiply_within_it(groups):
    found = groups("a: {train-seed: [0, 1], unlearn-seeds: [0, 1, 2], evaluate-seeds: [5, 6]}")
    assert [(g.train_seed, g.seeds("unlearn"), g.seeds("evaluate")) for g in found] == [
        (seed, [0, 1, 2], [5, 6]) for seed in (0, 1)
    ]


def test_settings_of_methods_multiply_as_a_list_of_overrides(groups):
    text = "a: {methods: [ga, fedquit], overrides: [{ga: {max-norm: 1}}, {ga: {max-norm: 5}}], lr: [0.1, 0.2]}"
    found = groups(text)
    assert [(g.method_overrides()["ga"]["max-norm"], g.lr) for g in found] == [(1, 0.1), (1, 0.2), (5, 0.1), (5, 0.2)]
    sets = groups(text, sets=["fedquit.lr=0.5"])
    assert all(group.method_overrides()["fedquit"] == {"lr": 0.5} for group in sets)


def test_methods_with_settings_stay_one_group_and_the_schedule_multiplies_around_them(groups):
    found = groups("a: {methods: {ga: {max-norm: 5}, fedquit: , scrub: {decay-after: [1, 2]}}, rounds: [1, 2]}")
    assert [(g.rounds, g.method_names()) for g in found] == [(n, ["ga", "fedquit", "scrub"]) for n in (1, 2)]
    assert found[0].method_overrides() == {"ga": {"max-norm": 5}, "scrub": {"decay-after": [1, 2]}}


def test_several_experiments_keep_their_order_and_repeats_go(groups):
    assert [g.name for g in groups("a: {}\nb: {}", "b", "a", "b")] == ["b", "a"]


def test_a_relative_original_lies_beside_the_manifest_and_from_set_in_the_working_directory(
    groups, tmp_path, monkeypatch
):
    assert groups("a: {original: m.safetensors}")[0].original == str(tmp_path / "m.safetensors")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert groups("a: {}", sets=["original=m.safetensors"])[0].original == str(tmp_path / "sub" / "m.safetensors")


# --set
def test_set_wins_over_the_manifest_in_every_group(groups):
    assert [g.rounds for g in groups("a: {rounds: 3, lr: [1, 2]}", sets=["rounds=7"])] == [7, 7]


def test_set_takes_lists_and_method_settings(groups):
    found = groups("a: {methods: {ga: {max-norm: 5}}}", sets=["lr=[1e-3, 1e-2]", "ga.max-norm=1e-1", "ga.k=null"])
    assert [g.lr for g in found] == [1e-3, 1e-2]
    assert json.loads(found[0].overrides) == {"ga": {"k": None, "max-norm": 0.1}}


def test_set_keeps_text_as_it_is(groups):
    (group,) = groups("a: {}", sets=["requests=client:patient-1,patient-2; class:5", 'overrides={"ga": {"x": 1}}'])
    assert group.request_texts() == ["client:patient-1,patient-2", "class:5"]
    assert group.method_overrides() == {"ga": {"x": 1}}
    (group,) = groups("a: {}", sets=["overrides={ga: {max-norm: 5}}"])
    assert group.method_overrides() == {"ga": {"max-norm": 5}}


@pytest.mark.parametrize(
    ("text", "sets", "says"),
    [
        ("a: {roundz: 3}", [], "a: setting='roundz'.*did you mean 'rounds'"),
        ("a: {rounds: yes}", [], "a.rounds='yes'.*a whole number from 1 to 100000"),
        ("a: {}\nb: {lr: -1}", [], "b.lr=-1.*above 0"),
        ("a: {lr: []}", [], "a.lr.*at least one value"),
        ("a: {jobs: 2}", [], "use --jobs"),
        ("a b: {}", [], "experiment='a b'.*a name of letters"),
        ('"a\\e": {}', [], r"experiment='a\\x1b'"),
        ('"\\ud800": {}', [], r"experiment='\\ud800'"),
        ("'': {}", [], "experiment=''"),
        (f"{'a' * 81}: {{}}", [], "up to 80"),
        ("-a: {}", [], "a letter, digit or '_' first"),
        ("a: {search: []}", [], r"a\.search=\[\]: allowed is at least one value"),
        ("a: {train-seed: [0, 1, 0]}", [], "a.train-seed=0: allowed is each value once"),
        ("a: {unlearn-seeds: [0, '0']}", [], "a.unlearn-seeds=.*each value once"),
        ("a: {methods: [ga, ga]}", [], "a.methods='ga': allowed is each value once"),
        ("a: {requests: [class:5, class:5]}", [], "a.requests='class:5': allowed is each value once"),
        ("a: {overrides: [{ga: {k: 1}}, {ga: {k: 1}}]}", [], r"a\.overrides=.*each value once"),
        ("a: {lr: 1e-400}", [], r"mine\.yaml:1='1e-400'.*0, or a number of 2\.23e-308"),
        ("a: {lr: 1e400}", [], r"mine\.yaml:1='1e400'"),
        (f"a: {{cap: {'9' * 5000}}}", [], "a whole number of up to 300 digits"),
        ("a: {}", ["foo=1"], "--set: setting='foo': allowed is a key that `python -m flower_apps.settings` lists"),
        ("a: {}", ["search=xx"], r"--set search='xx': allowed is a mapping such as {fedquit: {lr"),
        ("a: {}", ["overrides=xx"], r"--set overrides='xx': allowed is a mapping such as {ga"),
        ("a: {}", ["budget=3"], r"such as budget: {hours: 12}"),
        ("a: {home: /tmp}", [], "use --home"),
        ("a: {extends: b}\nb: {extends: a}", [], "does not lead back"),
        ("a: {extends: 3}", [], r"a\.extends=3.*or a list of names"),
        ("a: {extends: [b, b]}\nb: {}", [], r"a\.extends.*each name once"),
        ("a: {extends: [b, c]}\nb: {}\nc: {extends: a}", [], "does not lead back"),
        ("a: {extends: a}", [], "does not lead back"),
        ("a: {extends: [b, cc]}\nb: {}\nc: {}", [], "did you mean 'c'"),
        ("a: {tags: study}", [], r"a\.tags='study'.*a list of names"),
        ("a: {tags: ['']}", [], r"a\.tags"),
        ("a: {budget: 3}", [], r"a\.budget=3.*a mapping of limits"),
        ("a: {budget: {hours: 0}}", [], r"a\.budget\.hours=0.*a number above 0; hours is"),
        ("a: {budget: {hours: true}}", [], r"a\.budget\.hours=True"),
        ("a: {budget: {hours: .inf}}", [], r"a\.budget\.hours=inf"),
        ("a: {budget: {disk: 3}}", [], "did you mean 'disk-gb'"),
        ("_a: {lr: -1}\na: {}", [], "_a.lr=-1"),
        ("_a: {}", [], "at least one experiment"),
        ("_b: {}\na: {}", ["tags=[x]"], "write it in the manifest"),
        ("a: " + "[" * 3000 + "]" * 3000, [], "not nested this deep"),
        ("a: {extends: bb}\nbase: {}\nb: {}", [], "did you mean 'b'"),
        ("a: 3", [], "a=3.*a mapping of settings"),
        ("- a", [], "a mapping of experiment names"),
        ("", [], "a mapping of experiment names"),
        ("a: {methods: {ga: 3}}", [], "a mapping of settings each"),
        ("a: {methods: {ga: {k: 1}}, overrides: '{}'}", [], "a.overrides"),
        ("a: {methods: ['ga,fedquit']}", [], "a list of texts.*without ','"),
        ("a: {rounds: {x: 1}}", [], "a.rounds"),
        ("a: {}", ["roundz=3"], "--set: setting='roundz'.*did you mean 'rounds'"),
        ("a: {}", ["rounds"], "--set='rounds'.*key=value"),
        ("a: {}", ["rounds=x"], "^--set rounds='x'"),
        ("a: {}", ["jobs=2"], "use --jobs"),
        ("a: {}", ["extends=b"], "write it in the manifest"),
    ],
)
def test_mistakes_are_one_line_that_names_them(groups, text, sets, says):
    with pytest.raises(BadInput, match=says) as caught:
        groups(text, sets=sets)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("find: {extends: quick}\nquick: {rounds: 0}", "quick.rounds"),
        ("a: {extends: b}\nb: {extends: _c}\n_c: {rounds: 0}", "_c.rounds"),
        ("a: {extends: [b, c]}\nb: {rounds: 1}\nc: {rounds: 0}", "c.rounds"),
        ("a: {extends: [b, c]}\nb: {rounds: 0}\nc: {lr: 1}", "b.rounds"),
        ("a: {extends: b, rounds: 0}\nb: {rounds: 3}", "a.rounds"),
        ("a: {extends: a.b}\na.b: {rounds: 0}", "a.b.rounds"),
        ("a: {extends: b}\nb: {lr: []}", "b.lr"),
        ("a: {extends: b}\nb: {methods: [ga, ga]}", "b.methods"),
        ("a: {extends: b}\nb: {methods: {ga: 3}}", "b.methods"),
        ("a: {extends: b}\nb: {exclude: [{alpha: 7}]}", "b.exclude: alpha"),
        ("a: {extends: b}\nb: {requests: [clien:x], exclude: [{request: class:5}]}", "b.requests"),
        ("a: {extends: b, exclude: [{method: ga}]}\nb: {requests: [clien:x]}", "b.requests"),
    ],
)
def test_an_error_names_the_entry_in_which_the_value_is_written(groups, text, key):
    with pytest.raises(BadInput) as refused:
        groups(text)
    assert refused.value.key == key


def test_of_an_experiment_that_is_asked_for_too_and_a_flag_comes_first(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "find: {extends: quick}\nquick: {dataset: digitz, methods: {ga: {max-nrom: 1}}, track: x}\n"
        "other: {extends: quick, dataset: lung-ct, track: '', overrides: '{}', methods: fedquitt}",
        encoding="utf-8",
    )
    manifest = load_manifest(path)

    def key(name, sets=(), flags=None):
        with pytest.raises(BadInput) as refused, manifest.placing([name], sets, flags):
            check_experiments(manifest.groups([name], sets, flags))
        return refused.value.key

    assert key("find") == "quick.dataset"
    assert key("find", ["dataset=lung-ct"]) == "quick.track"
    assert key("find", ["dataset=lung-ct", "track="]) == "quick.ga setting"
    assert key("find", ["dataset=lung-ct", "track=y"]) == "--set track"
    assert key("find", ["dataset=lung-ct"], {"track": "y"}) == "--track"
    assert key("find", ["dataset=lung-ct"], {"evaluator": "y"}) == "--evaluator"
    assert key("other") == "other.method"
    assert key("other", ["methods=gaa"]) == "--set methods"
    assert key("other", ["methods=ga", "ga.max-nrom=1"]) == "--set: ga setting"
    assert key("other", ["methods=ga", "ga.max-norm=-1"]) == "--set ga.max-norm"


def test_names_and_meanings_are_checked_of_experiments_that_are_asked_for_and_form_of_all(tmp_path):
    path = tmp_path / "mine.yaml"
    for text in (
        "dataset: x",
        "methods: {ga: {x: 1}}",
        "requests: x",
        "track: x",
        "search: {ga: {x: [1]}}",
        "split: x",
    ):
        path.write_text(f"a: {{}}\nb: {{{text}}}", encoding="utf-8")
        manifest = load_manifest(path)
        check_experiments(manifest.groups(["a"]))
        with pytest.raises(BadInput, match=r"^b\."):
            check_experiments(manifest.groups(["b"]))
    for text in ("rouns: 1", "rounds: x", "rounds: 0", "exclude: [{alpha: 7}]", "extends: x"):
        path.write_text(f"a: {{}}\nb: {{{text}}}", encoding="utf-8")
        with pytest.raises(BadInput, match=r"^b[.:]"):
            load_manifest(path)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("methods: [{ga: {max-norm: 3}}, fedquit]", "write methods: {ga: {max-norm: 3}, fedquit: }"),
        (
            "methods: [fedquit, {ga: {max-norm: 3, lr: 1e-4}}]",
            "write methods: {fedquit: , ga: {max-norm: 3, lr: 0.0001}}",
        ),
        ("methods: [ga: {max-norm: 3}, fedquit: ]", "write methods: {ga: {max-norm: 3}, fedquit: }"),
        ("methods: [{ga: , max-norm: 3}]", "write methods: {ga: {max-norm: 5}, fedquit: }"),
        ("methods: [{ga: {max-norm: 3}}, ga]", "write methods: {ga: {max-norm: 5}, fedquit: }"),
        ("requests: [client: patient-1]", "write client:patient-1, without a blank"),
        ("requests: {client: patient-1}", "write client:patient-1, without a blank"),
        ("requests: [[client: patient-1, class:5]]", "write client:patient-1, without a blank"),
        ("unlearn-seeds: [{0: 1}]", "a list of whole numbers"),
    ],
)
def test_a_mapping_where_a_list_has_texts_is_shown_as_it_is_meant(groups, text, remedy):
    with pytest.raises(BadInput) as refused:
        groups(f"a: {{{text}}}")
    assert str(refused.value).startswith(f"a.{text.partition(':')[0]}=")
    assert remedy in str(refused.value)
    right = remedy.removeprefix("write ")
    if right.startswith("methods") and "max-norm: 3" in right:
        assert groups(f"a: {{{right}}}")[0].method_overrides()["ga"]["max-norm"] == 3


def test_an_unknown_experiment_names_the_nearest_and_the_file(groups):
    with pytest.raises(BadInput, match=r"mine\.yaml; did you mean 'quickstart'"):
        groups("quickstart: {}", "quikstart")


def test_a_missing_manifest_is_named(tmp_path):
    with pytest.raises(BadInput, match="--manifest"):
        load_manifest(tmp_path / "none.yaml")


def test_paths_with_spaces_and_other_alphabets_work(tmp_path):
    path = tmp_path / "größe 研究" / "mes expériences.yaml"
    path.parent.mkdir()
    path.write_text("étude: {original: modèle.safetensors}", encoding="utf-8")
    (group,) = load_manifest(path).groups(["étude"])
    assert group.original == str(path.parent / "modèle.safetensors")


def test_the_working_directorys_manifest_comes_before_the_one_that_ships(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_manifest().parent != tmp_path
    assert "quickstart" in load_manifest(default_manifest()).experiments
    (tmp_path / "experiments.yaml").write_text("mine: {}")
    assert list(load_manifest(default_manifest()).experiments) == ["mine"]


def test_the_quickstart_is_the_main_job():
    (group,) = load_manifest(default_manifest()).groups(["quickstart"])
    assert (group.dataset, group.split, group.request_texts()) == ("lung-ct", "natural", ["client:patient-1"])
    assert group.method_names() == ["ga", "federaser", "fedquit"]


def test_without_a_name_quickstart_is_meant_or_the_only_one_there_is(tmp_path):
    def default(text):
        path = tmp_path / "experiments.yaml"
        path.write_text(text)
        return load_manifest(path).default()

    assert default("a: {rounds: 1}\nquickstart: {rounds: 2}\n") == "quickstart"
    assert default("mine: {rounds: 1}\n") == "mine"
    with pytest.raises(BadInput, match=r"one of a, b; name one"):
        default("a: {rounds: 1}\nb: {rounds: 2}\n")


def test_lists_that_multiply_to_too_many_groups_are_refused_before_any_is_made(groups):
    hundred = list(range(100))
    with pytest.raises(
        BadInput, match=r"1000000 groups.*at most 10000.*train-seed \(100\) x rounds \(100\)"
    ) as refused:
        groups(f"a: {{train-seed: {hundred}, rounds: {hundred}, cap: {hundred}, lr: [0.1]}}")
    assert "lr" not in str(refused.value) and "\n" not in str(refused.value)
