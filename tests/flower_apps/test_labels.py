"""Facts about what groups are called."""

from __future__ import annotations

from flower_apps.labels import labels_of


def test_one_group_of_an_experiment_has_its_name() -> None:
    assert labels_of({"a1b2c3": {"name": "one"}, "d4e5f6": {"name": "two", "lr": 0.1}}) == {
        "a1b2c3": "one",
        "d4e5f6": "two",
    }


def test_several_are_told_apart_by_the_settings_in_which_they_differ() -> None:
    groups = {
        str(number): {"name": "study", "rounds": 3, "alpha": alpha, "train-seed": seed, "out": str(number)}
        for number, (alpha, seed) in enumerate([(0.5, 0), (0.5, 1), (5.0, 0)])
    }
    assert list(labels_of(groups).values()) == [
        "study alpha=0.5 train-seed=0",
        "study alpha=0.5 train-seed=1",
        "study alpha=5.0 train-seed=0",
    ]


def test_where_that_is_long_or_much_the_id_tells() -> None:
    long = {str(n) * 6: {"name": "study", "requests": "class:1;" * 30 + str(n)} for n in (1, 2)}
    many = {str(n) * 6: {"name": "study", **dict.fromkeys("abcd", n)} for n in (1, 2)}
    assert list(labels_of(long).values()) == list(labels_of(many).values()) == ["study 1111", "study 2222"]


def test_a_setting_that_only_one_of_them_has_tells_them_apart() -> None:
    assert set(labels_of({"a": {"name": "s"}, "b": {"name": "s", "mu": 1}}).values()) == {"s mu=", "s mu=1"}
