"""The ClientApp: a node's client from the run configuration and its part of the data."""

from __future__ import annotations

import copy

from flwr.app import Context

from flwr_splitmix import SplitClient, SplitClientApp
from flwr_splitmix.data import client_split

from vision_config import VisionConfig


def client_fn(context: Context) -> SplitClient:
    """Make the client of one node; called once a run."""
    config = VisionConfig.read(context.run_config)
    images = config.images()
    train, test = client_split(
        images,
        int(context.node_config["partition-id"]),
        int(context.node_config["num-partitions"]),
        scheme=config.partition,
        alpha=config.partition_alpha,
        seed=config.seed,
        samples=config.samples_per_client,
    )
    return SplitClient(
        copy.deepcopy(config.segments().lower),
        train,
        batch_size=config.batch_size,
        test_data=test,
        benchmark_data=images.test,
        optimizer=config.optimizer(),
        schedule=config.schedule(),
        device=config.client_device,
    )


app = SplitClientApp(client_fn)
