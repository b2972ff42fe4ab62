"""The ClientApp."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from stock.task import Net, load_data
from stock.task import train as train_net

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this site's records."""
    config = context.run_config
    net = Net(int(config["classes"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    partition_id = int(context.node_config["partition-id"])
    loader = load_data(str(config["records"]), partition_id, int(config["batch-size"]))
    loss = train_net(net, loader, int(config["local-epochs"]), float(message.content["config"]["lr"]), device)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
