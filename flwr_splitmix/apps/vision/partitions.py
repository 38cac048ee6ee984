"""The number of partitions of a run's data: the ServerApp's query to a node, and its reply."""

from __future__ import annotations

import time

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import client_images
from flwr_splitmix.links import LinkError
from flwr_splitmix.links.polling import error_sentence, send_and_wait

PARTITIONS = "partitions"
"""Action of the query, and name of the record in its reply."""

PATIENCE = 120.0
"""Minimum timeout of the query in seconds: Flower starts a process to answer it."""


def answer_partitions(message: Message, context: Context) -> Message:
    """Return the ClientApp's reply to the query `PARTITIONS`: the number of partitions.

    Only the nodes know it.
    """
    number = ConfigRecord({"number": int(context.node_config["num-partitions"])})
    return Message(RecordDict({PARTITIONS: number}), reply_to=message)


def ask_partitions(grid: Grid, timeout: float) -> int:
    """Query a node for the number of partitions of the data.

    The number of nodes may differ: it grows while they connect, and a partition may have no node.

    Raises
    ------
    LinkError
        If no node connects within `timeout` seconds, or its reply does not come within as many.
    """
    deadline = time.monotonic() + timeout
    while not (nodes := sorted(grid.get_node_ids())):
        if time.monotonic() > deadline:
            raise LinkError(f"no node was there within {timeout:g} s")
        time.sleep(0.2)
    content = RecordDict({PARTITIONS: ConfigRecord({})})
    message = Message(content, dst_node_id=nodes[0], message_type=f"query.{PARTITIONS}")
    reply = send_and_wait(grid, [message], timeout).get(nodes[0])
    if reply is None or reply.has_error():
        reason = f"no answer within {timeout:g} s" if reply is None else error_sentence(reply)
        raise LinkError(f"no node said into how many parts the data are divided: {reason}")
    return int(str(reply.content.config_records[PARTITIONS]["number"]))


def labels_of_clients(config: VisionConfig, grid: Grid) -> list[Tensor]:
    """Return the labels of each client, int64 (examples,), in the order of its images.

    Raises
    ------
    LinkError
        Raised by `ask_partitions`.
    DataError
        Raised by `client_images`.
    """
    clients = ask_partitions(grid, max(config.attach_timeout, PATIENCE))
    return [torch.tensor(client_images(config, i, clients)[0].labels) for i in range(clients)]
