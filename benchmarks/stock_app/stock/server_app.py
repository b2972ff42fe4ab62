"""The ServerApp: Flower's FedAvg as it is; `evaluate_fn` notes when each round ended."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from stock.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg over all sites, without evaluation."""
    config = context.run_config
    events = Path(str(config["events"]))

    def note(kind: str) -> None:
        with events.open("a") as file:
            file.write(json.dumps({"kind": kind, "time": time.time()}) + "\n")

    note("run-started")
    sites = int(config["sites"])
    while len(list(grid.get_node_ids())) < sites:
        time.sleep(0.05)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=sites, min_available_nodes=sites)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net(int(config["classes"])).state_dict()),
        num_rounds=int(config["rounds"]),
        train_config=ConfigRecord({"lr": float(config["lr"])}),
        evaluate_fn=lambda server_round, arrays: note("round"),
    )
    note("finished")
