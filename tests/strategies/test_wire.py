import numpy as np
import pandas as pd
import pytest
import torch
from fake_sites import start_state
from flwr.app import Error, Message

from strategies.wire import (
    array_bytes,
    call_content,
    call_of,
    error_reply,
    from_record,
    make_message,
    reply_content,
    reply_of,
    to_record,
)
from unlearning.state import State, update_of


def test_a_state_comes_back_bit_for_bit_with_its_groups_dtypes_and_0d_shapes():
    state = start_state()
    back = from_record(to_record(state))
    assert back.sha256() == state.sha256()
    assert back.int_buffers["bn.num_batches_tracked"].shape == ()
    assert back.int_buffers["bn.num_batches_tracked"].dtype == torch.int64


def test_fp64_travels_as_fp64_and_half_precision_as_fp32():
    wide = State({"w": torch.ones(2, dtype=torch.float64)}, {}, {})
    half = State({"w": torch.ones(2, dtype=torch.bfloat16)}, {"m": torch.ones(1, dtype=torch.float16)}, {})
    assert from_record(to_record(wide)).params["w"].dtype == torch.float64
    assert from_record(to_record(half)).params["w"].dtype == torch.float32
    assert from_record(to_record(half)).float_buffers["m"].dtype == torch.float32


def test_an_update_has_no_integer_buffers():
    record = to_record(update_of(start_state(), start_state()))
    assert not any(name.startswith("int_buffers") for name in record)


def test_a_call_comes_back_with_op_models_and_config():
    other = start_state(5)
    content = call_content(start_state(), {"lr": 0.1, "epochs": 2, "request": "", "ok": True}, {"other": other})
    call = call_of(make_message("evaluate", "compare", 7, content, "3"))
    assert (call.op, call.config) == ("compare", {"lr": 0.1, "epochs": 2, "request": "", "ok": True})
    assert call.state.sha256() == start_state().sha256()
    assert call.states["other"].sha256() == other.sha256()


def test_a_call_without_a_model_has_none():
    call = call_of(make_message("query", "describe", 7, call_content(None, {})))
    assert call.state is None and call.states == {}


def test_a_reply_comes_back_with_every_part():
    table = pd.DataFrame({"record": ["a", "b"], "loss": [0.5, float("nan")], "selected": [True, False]})
    message = make_message("evaluate", "scorecard", 7, call_content(start_state(), {}))
    message.metadata.__dict__["_message_id"] = "1"
    content = reply_content(
        state=start_state(),
        metrics={"num-examples": 3, "loss": 0.25},
        config={"device": "cpu", "data-shape": [28, 28]},
        tables={"scorecard": table},
        arrays={"importance": {"w": np.arange(3.0)}},
    )
    reply = reply_of(Message(content, reply_to=message), "site-a", bytes_down=12)
    assert (reply.site, reply.bytes_down, reply.bytes_up) == ("site-a", 12, array_bytes(content))
    assert reply.state.sha256() == start_state().sha256()
    assert reply.count("num-examples") == 3 and reply.number("loss") == 0.25
    assert reply.text("device") == "cpu" and reply.config["data-shape"] == [28, 28]
    pd.testing.assert_frame_equal(reply.tables["scorecard"], table)
    assert reply.arrays["importance"]["w"].tolist() == [0.0, 1.0, 2.0]
    assert reply.error == ""


def test_an_error_gives_a_reply_that_holds_its_reason():
    message = make_message("train", "train", 7, call_content(None, {}))
    message.metadata.__dict__["_message_id"] = "1"
    reply = reply_of(Message(Error(2, "ValueError: no"), reply_to=message), "site-a")
    assert reply.error == "ValueError: no" and reply.state is None


def test_what_a_site_raised_travels_as_one_line_and_its_traceback():
    message = make_message("train", "train", 7, call_content(None, {}))
    message.metadata.__dict__["_message_id"] = "1"
    try:
        raise ValueError("two\nlines") from KeyError("cause")
    except ValueError as error:
        reply = reply_of(error_reply(message, error), "site-a")
    assert reply.error == "ValueError: two lines"
    assert "KeyError: 'cause'" in reply.traceback
    assert 'raise ValueError("two\\nlines")' in reply.traceback


def test_what_a_site_did_not_send_reads_as_nothing():
    message = make_message("train", "train", 7, call_content(None, {}))
    message.metadata.__dict__["_message_id"] = "1"
    reply = reply_of(Message(reply_content(), reply_to=message), "site-a")
    assert np.isnan(reply.number("loss")) and reply.count("num-examples") == 0 and reply.text("device") == ""


@pytest.mark.parametrize("op", ["not-an-identifier"])
def test_flower_refuses_an_op_that_is_no_identifier(op):
    with pytest.raises(ValueError):
        make_message("train", op, 7, call_content(None, {}))
