"""The number of partitions of a run's data: the ServerApp's query to a node, and its reply."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn, cast

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import client_images
from flwr_splitmix.links import LinkError
from flwr_splitmix.links.polling import Mail, error_sentence, warn_of_ray
from flwr_splitmix.values import MAX_COUNT, wrong_count
from flwr_splitmix.words import counted, listed, verb

log = logging.getLogger("flwr.splitmix")

PARTITIONS = "partitions"
"""Action of the query, and name of the record in its reply."""

MIN_TIMEOUT = 120.0
"""Minimum timeout of the query in seconds: Flower starts a process to answer it."""

MAX_ASKED = 5
"""Most nodes that are asked: if two of five are wrong or silent, the others still agree."""


def partitions_of(node: Mapping[str, Any]) -> int:
    """Return the number of partitions in a node's configuration.

    Raises
    ------
    ConfigError
        If it has none, or something else.
    """
    if "num-partitions" not in node:
        raise ConfigError(
            "a SuperNode has no num-partitions, by which the images are divided; give it one with "
            "--node-config, the same for all"
        )
    if wrong := wrong_count(node["num-partitions"], 1):
        raise ConfigError(
            f"a SuperNode's num-partitions {wrong}; give all the same number with --node-config"
        )
    return cast(int, node["num-partitions"])


def answer_partitions(message: Message, context: Context) -> Message:
    """Return the ClientApp's reply to the query `PARTITIONS`: the number of partitions.

    Only the nodes know it.
    """
    number = ConfigRecord({"number": partitions_of(context.node_config)})
    return Message(RecordDict({PARTITIONS: number}), reply_to=message)


def ask_partitions(grid: Grid, min_nodes: int, timeout: float) -> int:
    """Query nodes for the number of partitions of the data, and return what most answers say.

    The number of nodes may differ: it grows while they connect, and a partition may have no node.
    A false number would give all clients the labels of other images. So as many nodes as are
    required are waited for, and up to `MAX_ASKED` are asked at once, until more than half of these
    agree. If fewer answer in time, the most frequent number counts, and the log says so.

    Parameters
    ----------
    min_nodes
        The number of nodes that must connect.
    timeout
        Seconds to wait for them, and again for their answers.

    Raises
    ------
    LinkError
        If too few nodes connect in time, none answers, or as many say one number as another.
    """
    asked = _connected(grid, min_nodes, timeout)[:MAX_ASKED]
    mail, deadline = Mail(grid, [_question(node) for node in asked]), time.monotonic() + timeout
    numbers: dict[int, int] = {}
    failures: list[str] = []
    while not mail.complete and time.monotonic() < deadline:
        for node, reply in sorted(mail.poll().items()):
            number = _number_in(reply)
            if number is None:
                failures.append(
                    error_sentence(reply)
                    if reply.has_error()
                    else f"node {node} answered without a number from 1 to {MAX_COUNT}"
                )
            else:
                numbers[node] = number
        if _agree(numbers, len(asked)):
            break
        time.sleep(0.05)
    if not numbers:
        _raise_no_answer(failures, len(asked), timeout)
    if failures:
        log.warning("of %d nodes that were asked for num-partitions: %s", len(asked), failures[0])
    if not _agree(numbers, len(asked)):
        log.warning(
            "%s of %d nodes that were asked said their num-partitions within %g s: the number that "
            "most of these say counts",
            len(numbers),
            len(asked),
            timeout,
        )
    return _most_frequent(numbers)


def _agree(numbers: Mapping[int, int], asked: int) -> bool:
    """Return whether more than half of the nodes that were asked say one number."""
    return 2 * max(Counter(numbers.values()).values(), default=0) > asked


def _connected(grid: Grid, min_nodes: int, timeout: float) -> list[int]:
    """Return the ids of the nodes, sorted, once so many are there."""
    deadline = time.monotonic() + timeout
    while len(nodes := sorted(grid.get_node_ids())) < min_nodes:
        if time.monotonic() > deadline:
            raise LinkError(
                f"{counted(len(nodes), 'node')} {verb(len(nodes), 'were')} there within "
                f"{timeout:g} s, min-nodes is {min_nodes}"
            )
        time.sleep(0.2)
    return nodes


def _number_in(reply: Message) -> int | None:
    """Return the number of partitions in a reply; None if it has none that can be."""
    if reply.has_error():
        return None
    record = dict(reply.content.config_records.get(PARTITIONS) or {})
    number = record.get("number")
    return None if wrong_count(number, 1, MAX_COUNT) else cast(int, number)


def _raise_no_answer(failures: list[str], asked: int, timeout: float) -> NoReturn:
    if not failures:
        warn_of_ray(timeout)
    if len(failures) < asked:
        failures = [*failures, f"no answer within {timeout:g} s"]
    raise LinkError(
        "no node said into how many parts the data are divided: "
        + "; ".join(dict.fromkeys(failures))
    )


def _most_frequent(numbers: Mapping[int, int]) -> int:
    """Return the number that most nodes say; warn of the others."""
    nodes_of: dict[int, list[int]] = {}
    for node, number in sorted(numbers.items()):
        nodes_of.setdefault(number, []).append(node)
    (most, agreeing), *others = sorted(nodes_of.items(), key=lambda item: -len(item[1]))
    if not others:
        return most
    summary = ", ".join(
        f"{number} (node {listed(nodes, most=3)})" for number, nodes in sorted(nodes_of.items())
    )
    if len(others[0][1]) == len(agreeing):
        raise LinkError(
            f"nodes differ in num-partitions, by which the images are divided: {summary}; start "
            "all with the same number in --node-config"
        )
    log.warning(
        "nodes differ in num-partitions, by which the images are divided: %s; the run takes %d, "
        "and nodes with another number train on other images than the server has the labels of: "
        "start all with the same number in --node-config",
        summary,
        most,
    )
    return most


def _question(node: int) -> Message:
    content = RecordDict({PARTITIONS: ConfigRecord({})})
    return Message(content, dst_node_id=node, message_type=f"query.{PARTITIONS}")


def labels_of_clients(config: VisionConfig, grid: Grid, min_nodes: int) -> list[Tensor]:
    """Return the labels of each client, int64 (examples,), in the order of its images.

    Parameters
    ----------
    min_nodes
        As for `ask_partitions`.

    Raises
    ------
    LinkError
        Raised by `ask_partitions`.
    DataError
        Raised by `client_images`.
    """
    clients = ask_partitions(grid, min_nodes, max(config.attach_timeout, MIN_TIMEOUT))
    return [torch.tensor(client_images(config, i, clients)[0].labels) for i in range(clients)]
