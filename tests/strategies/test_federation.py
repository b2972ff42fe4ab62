import json
import time

import pytest
from fake_grid import Gone, Silence
from fake_sites import SITES, Hospitals, counts, federation, start_state
from flwr.app import Error, Message

from partitions.errors import BadInput, RunFailed
from strategies.events import EventSink
from strategies.exchange import exchange
from strategies.wire import array_bytes, call_content, make_message

CONFIG = {"round": 1, "seed": 0, "purpose": "train", "lr": 0.1, "epochs": 1, "records": "all", "request": ""}


def raising(site: str, error: Exception):
    def interfere(asked: str, op: str, call):
        if asked == site:
            raise error

    return interfere


def ask(fed, sites=SITES):
    return fed.ask("train", "train", sites, state=start_state(), config=CONFIG)


@pytest.mark.parametrize("shuffle_seed", range(3))
def test_answers_are_sorted_by_site_whatever_the_order_of_arrival(shuffle_seed):
    replies = ask(federation(Hospitals(counts()), shuffle_seed=shuffle_seed), ("site-c", "site-a", "site-b"))
    assert [reply.site for reply in replies] == ["site-a", "site-b", "site-c"]
    assert [reply.count("num-examples") for reply in replies] == [10, 20, 30]


def test_only_those_asked_are_asked():
    fed = federation(Hospitals(counts()))
    ask(fed, ["site-b"])
    assert [site for site, _, _ in fed.grid.calls()] == ["site-b"]


def test_ask_all_asks_every_site():
    replies = federation(Hospitals(counts())).ask_all("query", "describe", {})
    assert tuple(reply.text("name") for reply in replies) == SITES


def test_nobody_to_ask_gives_no_answers():
    assert ask(federation(Hospitals(counts())), []) == []


def test_an_unknown_site_is_refused_with_the_nearest_name():
    with pytest.raises(BadInput, match="site-a"):
        ask(federation(Hospitals(counts())), ["site-aa"])


def test_bytes_are_counted_each_way_from_the_arrays():
    (reply,) = ask(federation(Hospitals(counts())), ["site-a"])
    assert reply.bytes_down == array_bytes(call_content(start_state(), {})) == reply.bytes_up > 0


def test_a_site_that_raises_ends_the_run_with_its_name_and_reason():
    fed = federation(Hospitals(counts(), raising("site-c", ValueError("no such file"))))
    with pytest.raises(RunFailed) as failed:
        ask(fed)
    assert str(failed.value) == "site-c raised: ValueError: no such file"
    assert "in interfere" in failed.value.__notes__[0]


def test_under_the_other_policy_it_answers_with_its_error():
    fed = federation(Hospitals(counts(), raising("site-c", ValueError("no"))), failure_policy="continue")
    replies = ask(fed)
    assert [reply.error for reply in replies] == ["", "", "ValueError: no", ""]


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_a_lost_site_ends_the_run_under_either_policy_and_is_named(policy):
    fed = federation(Hospitals(counts(), raising("site-b", Gone())), failure_policy=policy)
    with pytest.raises(RunFailed, match="site-b is not reachable"):
        ask(fed)


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_silence_ends_the_run_when_the_time_is_up_and_names_the_site(policy):
    fed = federation(Hospitals(counts(), raising("site-d", Silence())), timeout=0.3, failure_policy=policy)
    started = time.monotonic()
    with pytest.raises(RunFailed, match="no answer from site-d"):
        ask(fed)
    assert time.monotonic() - started < 2


def test_a_message_that_the_superlink_does_not_take_ends_the_run():
    fed = federation(Hospitals(counts()))
    fed.grid.push_messages = lambda messages: [None for _ in messages]
    with pytest.raises(RunFailed, match="the SuperLink took 0"):
        ask(fed)


def test_every_answer_is_an_event(tmp_path):
    fed = federation(Hospitals(counts()), events=EventSink(tmp_path / "e"))
    fed.ask("train", "train", SITES, state=start_state(), config=CONFIG, stage="train", label="original", round_=3)
    events = [json.loads(line) for line in (tmp_path / "e").read_text().splitlines()]
    assert sorted(event["site"] for event in events) == list(SITES)
    assert {(e["kind"], e["stage"], e["label"], e["round"], e["seconds"]) for e in events} == {
        ("reply", "train", "original", 3, 0.125)
    }


def test_a_killed_worker_is_named_in_a_line_and_not_in_rays_words():
    words = "<class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly before finishing.'>" + "x" * 500
    asked = make_message("train", "train", 7, call_content(None, {}))
    asked.metadata.__dict__["_message_id"] = "1"
    with pytest.raises(RunFailed, match="worker process died") as caught:
        exchange(Dying(words), [asked], ["site-a"], timeout=1.0, during="round 2 of original")
    assert len(str(caught.value)) < 140 and "round 2 of original" in str(caught.value)


class Dying:
    """A grid whose only answer is Flower's error for a worker that is gone."""

    def __init__(self, words: str) -> None:
        self._words = words

    def push_messages(self, messages):
        self._replies = [Message(Error(0, self._words), reply_to=message) for message in messages]
        return ["1"]

    def pull_messages(self, ids):
        return self._replies
