"""What the simulated sites of several groups share."""

from __future__ import annotations

from flower_apps import sites
from flower_apps.settings import GroupSettings


def test_prepared_records_are_read_again_once_for_all_groups(tmp_path, monkeypatch):
    read = []
    dataset = sites.DATASETS.get("digits")
    monkeypatch.setattr(type(dataset), "renew_damaged", lambda self, home, cap: read.append((self.name, cap)))
    groups = [GroupSettings(dataset="digits", split="iid", sites=count, cap=0) for count in (2, 3)]
    groups.append(GroupSettings(dataset="digits", split="iid", sites=2, cap=5))
    made = [sites.partition_of(group, tmp_path) for group in groups]
    assert [len(partition.sites) for partition in made] == [2, 3, 2]
    assert read == [("digits", 0), ("digits", 5)]


def test_a_depot_is_given_the_data_once_and_by_nobody_who_only_splits(tmp_path, monkeypatch):
    asked = []
    load = sites.load_data

    def note(dataset, home, cap, depot, *, give=False):
        asked.append(give)
        return load(dataset, home, cap)

    monkeypatch.setattr(sites, "load_data", note)
    for methods in ("ga", "fedquit"):
        group = GroupSettings(dataset="digits", split="iid", sites=2, cap=6, methods=methods, depot=str(tmp_path / "d"))
        sites.partition_of(group, tmp_path)
        sites.give_data(group.dataset, tmp_path, group.cap, group.depot)
    assert asked == [False, True]
