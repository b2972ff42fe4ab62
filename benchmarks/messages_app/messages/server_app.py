"""The ServerApp: sends a model to every site, in the messages and handed over in files; the two take turns."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from strategies.exchange import exchange
from strategies.handover import Handover
from strategies.roster import wait_for_nodes
from strategies.wire import call_content, make_message
from unlearning.state import State

LAYERS = 20

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Send models of each size."""
    config, events = context.run_config, Path(str(context.run_config["events"]))

    def note(kind: str, **fields: object) -> None:
        with events.open("a") as file:
            file.write(json.dumps({"kind": kind, "time": time.time(), **fields}) + "\n")

    note("run-started")
    nodes = wait_for_nodes(grid, int(config["sites"]))
    names = [str(node) for node in nodes]
    handover = Handover.here()
    assert handover is not None, "the launcher names a folder"
    for size in map(int, str(config["sizes"]).split(",")):
        state = State({f"layer-{n}": torch.randn(size // LAYERS) for n in range(LAYERS)}, {}, {})
        for turn in range(int(config["turns"]) + 1):
            for way, found in (("messages", None), ("files", handover)):
                started = time.perf_counter()
                content = call_content(state, {}, None, found)
                exchange(grid, [make_message("query", "touch", node, content) for node in nodes], names, timeout=600.0)
                if turn:  # in the first one the workers start
                    note("exchange", size=size, way=way, seconds=time.perf_counter() - started)
    note("finished")
