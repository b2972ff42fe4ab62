import time

import pytest
from fake_grid import FakeGrid
from fake_sites import Hospitals, counts

from partitions.errors import BadInput, RunFailed
from strategies.events import EventSink
from strategies.roster import Roster, meet_sites, wait_for_nodes
from strategies.wire import SiteReply

NODES = {"site-b": 5, "site-a": 9, "site-c": 2, "site-d": 77}


def grid(nodes=NODES, **kwargs) -> FakeGrid:
    return FakeGrid(nodes, Hospitals(counts(), **kwargs))


def test_sites_are_known_by_what_they_answer_whatever_their_node_ids():
    roster = meet_sites(grid(), 4, {}, EventSink(None))
    assert roster.sites == ("site-a", "site-b", "site-c", "site-d")
    assert roster.nodes == dict(sorted(NODES.items()))
    assert roster.site(77) == "site-d" and roster.node("site-d") == 77
    assert roster.described["site-b"]["num-train"] == 20


def test_nodes_that_come_late_are_waited_for():
    late = grid()
    started = time.monotonic()
    late.get_node_ids = lambda: [1, 2] if time.monotonic() > started + 0.25 else []
    assert wait_for_nodes(late, 2, timeout=5) == [1, 2]


def test_too_few_nodes_end_the_wait_with_both_numbers_and_the_flag():
    with pytest.raises(RunFailed, match=r"6 sites.*4 nodes.*num-supernodes=6"):
        wait_for_nodes(grid(), 6, timeout=0.2)


def test_too_many_nodes_are_refused_at_once():
    started = time.monotonic()
    with pytest.raises(RunFailed, match=r"3 sites.*4 nodes.*num-supernodes=3"):
        wait_for_nodes(grid(), 3, timeout=30)
    assert time.monotonic() - started < 1


def test_two_nodes_that_say_they_are_one_site_are_refused():
    with pytest.raises(BadInput, match="site-a"):
        Roster.from_replies(
            [1, 2], [SiteReply("n1", config={"name": "site-a"}), SiteReply("n2", config={"name": "site-a"})]
        )


def test_a_site_without_a_name_is_refused():
    with pytest.raises(BadInput, match="node 1"):
        Roster.from_replies([1], [SiteReply("n1")])


def test_an_unknown_site_is_refused_with_the_nearest_name():
    with pytest.raises(BadInput, match="did you mean 'site-a'"):
        Roster({"site-a": 1}, {}).node("site-aa")


def test_an_unknown_node_is_refused():
    with pytest.raises(RunFailed, match="node 3"):
        Roster({"site-a": 1}, {}).site(3)
