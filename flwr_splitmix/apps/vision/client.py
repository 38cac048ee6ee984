"""The vision ClientApp: a node's client, from the run configuration and its part of the images."""

from __future__ import annotations

import copy

from flwr.app import Context

from flwr_splitmix.apps.vision import ushape
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import client_images, images_of
from flwr_splitmix.apps.vision.model import segments_of
from flwr_splitmix.apps.vision.partitions import partitions_of
from flwr_splitmix.clients import Client, SplitClient


def client_fn(context: Context) -> Client:
    """Make the client of one node.

    It is called once per run in a simulation, and once per round on a SuperNode.

    Raises
    ------
    ConfigError, ClientError, DataError, ValueError
        If configuration, data or device are unsuitable.
    """
    config = VisionConfig.read(context.run_config)
    partition = int(context.node_config["partition-id"])
    partitions = partitions_of(context.node_config)
    if config.ushape:
        return ushape.make_client(config, partition, partitions)
    return make_client(config, partition, partitions)


def make_client(config: VisionConfig, client: int, clients: int) -> SplitClient:
    """Make a client of the L shape; the numbers are its partition, and that of partitions.

    Raises
    ------
    ConfigError, ClientError, DataError, ValueError
        If data, model or device are unsuitable.
    """
    train, test = client_images(config, client, clients)
    return SplitClient(
        copy.deepcopy(segments_of(config).lower),
        train,
        batch_size=config.batch_size,
        test_data=test,
        benchmark_data=images_of(config).test,
        optimizer=config.optimizer(),
        schedule=config.schedule(),
        device=config.client_device,
        shares=config.trial().mixer.shares,
        privacy=config.budget,
    )
