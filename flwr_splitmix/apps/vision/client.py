"""The ClientApp: a node's client from the run configuration and its part of the data."""

from __future__ import annotations

import copy

from flwr.app import ConfigRecord, Context, Message, RecordDict

from flwr_splitmix import SplitClient, SplitClientApp

from vision_config import VisionConfig


def client_fn(context: Context) -> SplitClient:
    """Make the client of one node; called once a run."""
    config = VisionConfig.read(context.run_config)
    train, test = config.client_images(
        int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    )
    return SplitClient(
        copy.deepcopy(config.segments().lower),
        train,
        batch_size=config.batch_size,
        test_data=test,
        benchmark_data=config.images().test,
        optimizer=config.optimizer(),
        schedule=config.schedule(),
        device=config.client_device,
        privacy=config.budget,
    )


app = SplitClientApp(client_fn)


@app.query("partitions")
def partitions(message: Message, context: Context) -> Message:
    """Say into how many parts the data are divided; only a node knows."""
    number = ConfigRecord({"number": int(context.node_config["num-partitions"])})
    return Message(RecordDict({"partitions": number}), reply_to=message)
