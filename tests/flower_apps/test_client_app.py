from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from clients.ops import Op, Reply
from flower_apps import client_app
from strategies.wire import CLIENT_RAISED, call_content, error_of


@pytest.fixture
def context(monkeypatch):
    monkeypatch.setattr(client_app, "site_of", lambda context: SimpleNamespace(name="site-1", refuses={"train"}))
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    return Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})


def ask(context, run, name="toy"):
    message = Message(call_content(None, {"round": 1}), 2, f"query.{name}")
    message.metadata.__dict__["_message_id"] = "7"
    return client_app.handler(Op(name, "query", run))(message, context)


def test_an_operation_leaves_nothing_in_the_context_that_flower_sends_back_with_every_message(context):
    assert ask(context, lambda site, call: Reply(config={"heard": call.config["round"]})).content["config"] == (
        ConfigRecord({"heard": 1})
    )
    assert not context.state


def test_what_an_operation_raises_is_answered_with_its_traceback(context):
    def broken(site, call):
        raise ZeroDivisionError("on purpose")

    reply = ask(context, broken)
    what, where = error_of(reply)
    assert reply.error.code == CLIENT_RAISED
    assert "ZeroDivisionError: on purpose" in what and "in broken" in where


def test_what_a_site_refuses_it_does_not_do_and_says_so_in_one_line_without_a_traceback(context):
    did = []
    reply = ask(context, lambda site, call: did.append(call), name="train")
    assert reply.error.code == CLIENT_RAISED
    assert error_of(reply) == ("Refused: site-1 refuses train (`refuse` in its node config)", "")
    assert did == []


@pytest.mark.parametrize(("node", "depot"), [({"partition-id": 1}, "/mnt/depot"), ({"site": "hospital"}, "")])
def test_a_node_that_names_its_site_has_nothing_to_do_with_a_depot(monkeypatch, node, depot):
    monkeypatch.setattr(client_app, "open_site", lambda settings, partition_id, name, refuses: settings)
    config = {"depot": "/mnt/depot", "home": "/tmp/nowhere"}
    opened = client_app.site_of(SimpleNamespace(run_config=config, node_config=node))
    assert opened.depot == depot
