"""A tiny Flower app in a temporary folder: rounds of messages to two sites, with ways to go wrong in round 2."""

from __future__ import annotations

from pathlib import Path

PYPROJECT = """
[project]
name = "toy"
version = "0.1.0"
description = "toy"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "lethe"
[tool.flwr.app.components]
serverapp = "toyrooms.server_app:app"
clientapp = "toyrooms.client_app:app"
[tool.flwr.app.config]
events = ""
mode = "ok"
"""
CLIENT = """
import os, time
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    if config["marker"] and not os.path.exists(config["marker"]):
        open(config["marker"], "w").close()
        os._exit(9)
    time.sleep(config["seconds"])
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
"""
SERVER = """
import json, time, traceback
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    def emit(kind, **fields):
        with open(config["events"], "a") as file:
            file.write(json.dumps({"kind": kind, "time": time.time(), **fields}) + "\\n")
    emit("run-started")
    try:
        while len(nodes := list(grid.get_node_ids())) < 2:
            time.sleep(0.05)
        for round_ in (1, 2):
            emit("round-started", stage="train", label="original", round=round_, rounds=2)
            mode = config["mode"] if round_ == 2 else "ok"
            if mode == "raise":
                raise ValueError("the toy was told to raise")
            content = ConfigRecord({
                "seconds": 600.0 if mode == "hang" else 0.0,
                "marker": config["events"] + ".died" if mode == "die" else "",
            })
            wanted = set(grid.push_messages([
                Message(RecordDict({"config": content}), dst_node_id=node, message_type="train", group_id="")
                for node in nodes
            ]))
            while wanted:
                for reply in grid.pull_messages(list(wanted)):
                    wanted.discard(reply.metadata.reply_to_message_id)
                    if reply.has_error():
                        raise RuntimeError(reply.error.reason)
                time.sleep(0.02)
            emit("round-finished", stage="train", label="original", round=round_, rounds=2, loss=1.0, metric=0.5)
    except Exception as error:
        emit("failed", reason=str(error), traceback=traceback.format_exc(), resumable=config["mode"] == "die")
        raise
    emit("finished")
"""


def write_toy_app(folder: Path) -> Path:
    """Write the app below `folder` and return its folder."""
    rooms = folder / "toy" / "toyrooms"
    rooms.mkdir(parents=True)
    (rooms.parent / "pyproject.toml").write_text(PYPROJECT)
    (rooms / "__init__.py").touch()
    (rooms / "client_app.py").write_text(CLIENT)
    (rooms / "server_app.py").write_text(SERVER)
    return rooms.parent
