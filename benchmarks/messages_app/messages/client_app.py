"""The ClientApp: reads every number of the model that it gets, and says that it did."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from strategies.wire import call_of, reply_content

app = ClientApp()


@app.query("touch")
def touch(message: Message, context: Context) -> Message:
    """Sum the model up."""
    state = call_of(message).state
    assert state is not None
    total = sum(float(tensor.sum()) for tensor in state.params.values())
    return Message(content=reply_content(metrics={"total": total}), reply_to=message)
