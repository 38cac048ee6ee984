"""The number of partitions of a run's data: the ServerApp's query to a node, and its reply."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import client_images
from flwr_splitmix.links import LinkError
from flwr_splitmix.links.polling import Mail, error_sentence, warn_of_ray

PARTITIONS = "partitions"
"""Action of the query, and name of the record in its reply."""

MIN_TIMEOUT = 120.0
"""Minimum timeout of the query in seconds: Flower starts a process to answer it."""

MAX_ASKED = 3
"""Most nodes that are asked."""


def partitions_of(node: Mapping[str, Any]) -> int:
    """Return the number of partitions in a node's configuration.

    Raises
    ------
    ConfigError
        If it has none.
    """
    if "num-partitions" not in node:
        raise ConfigError(
            "a SuperNode has no num-partitions, by which the images are divided; give it one with "
            "--node-config, the same for all"
        )
    return int(node["num-partitions"])


def answer_partitions(message: Message, context: Context) -> Message:
    """Return the ClientApp's reply to the query `PARTITIONS`: the number of partitions.

    Only the nodes know it.
    """
    number = ConfigRecord({"number": partitions_of(context.node_config)})
    return Message(RecordDict({PARTITIONS: number}), reply_to=message)


def ask_partitions(grid: Grid, timeout: float) -> int:
    """Query nodes, one after another, for the number of partitions of the data.

    The number of nodes may differ: it grows while they connect, and a partition may have no node.
    The next node, one of `MAX_ASKED`, is asked as soon as the earlier ones have failed, or have
    let their part of the time pass; then the first answer counts.

    Raises
    ------
    LinkError
        If no node connects within `timeout` seconds, or none answers within as many.
    """
    deadline = time.monotonic() + timeout
    while not (nodes := sorted(grid.get_node_ids())):
        if time.monotonic() > deadline:
            raise LinkError(f"no node was there within {timeout:g} s")
        time.sleep(0.2)
    questions: list[Mail] = []
    failures: list[str] = []
    began, most = time.monotonic(), min(len(nodes), MAX_ASKED)
    for number, node in enumerate(nodes[:most], 1):
        questions.append(Mail(grid, [_question(node)]))
        until = began + timeout * number / most
        while (open_mail := [mail for mail in questions if not mail.complete]) and (
            time.monotonic() < until
        ):
            for reply in chain.from_iterable(mail.poll().values() for mail in open_mail):
                if not reply.has_error():
                    return int(str(reply.content.config_records[PARTITIONS]["number"]))
                failures.append(error_sentence(reply))
            time.sleep(0.05)
    if not failures:
        warn_of_ray(timeout)
    if len(failures) < len(questions):
        failures.append(f"no answer within {timeout:g} s")
    raise LinkError(
        "no node said into how many parts the data are divided: "
        + "; ".join(dict.fromkeys(failures))
    )


def _question(node: int) -> Message:
    content = RecordDict({PARTITIONS: ConfigRecord({})})
    return Message(content, dst_node_id=node, message_type=f"query.{PARTITIONS}")


def labels_of_clients(config: VisionConfig, grid: Grid) -> list[Tensor]:
    """Return the labels of each client, int64 (examples,), in the order of its images.

    Raises
    ------
    LinkError
        Raised by `ask_partitions`.
    DataError
        Raised by `client_images`.
    """
    clients = ask_partitions(grid, max(config.attach_timeout, MIN_TIMEOUT))
    return [torch.tensor(client_images(config, i, clients)[0].labels) for i in range(clients)]
