"""The number of parts of a run's data: the ServerApp's question to a node, and its answer."""

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
"""The action of the query, and the record of its answer."""

PATIENCE = 120.0
"""Seconds that the question is given at least: Flower starts a process to answer it."""


def answer_partitions(message: Message, context: Context) -> Message:
    """Say into how many parts the data are divided; only a node knows.

    The ClientApp's answer to the query `PARTITIONS`.
    """
    number = ConfigRecord({"number": int(context.node_config["num-partitions"])})
    return Message(RecordDict({PARTITIONS: number}), reply_to=message)


def ask_partitions(grid: Grid, timeout: float) -> int:
    """Ask a node into how many parts the data are divided.

    The number of nodes need not be it: it grows while they connect, and a part may have no node.

    Raises
    ------
    LinkError
        If no node answers within `timeout` seconds.
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
    """Return each client's labels, int64 (examples,), by its index, in the order of its images.

    Raises
    ------
    LinkError
        As `ask_partitions`.
    DataError
        As `client_images`.
    """
    clients = ask_partitions(grid, max(config.attach_timeout, PATIENCE))
    return [torch.tensor(client_images(config, i, clients)[0].labels) for i in range(clients)]
