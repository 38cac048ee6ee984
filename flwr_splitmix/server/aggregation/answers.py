"""Checks of what the methods of a Flower strategy return, an aggregator's or an overridden one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import strategy as flower

from flwr_splitmix.clients.lower import Shaped, differences
from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.server.aggregation.nodes import AggregatorError
from flwr_splitmix.words import described


def messages_of(made: object, strategy: flower.Strategy, method: str) -> list[Message]:
    """Return the messages that a method made, which may be a generator.

    Raises
    ------
    AggregatorError
        If it returned something else, or two messages for one client: a client takes part in a
        round once.
    """
    messages: list[Any] = list(made) if isinstance(made, Iterable) else [None]
    if not all(isinstance(message, Message) for message in messages):
        raise AggregatorError(
            f"{method} of {type(strategy).__name__} returns {described(made)}; needed are messages"
        )
    asked: set[int | str] = set()
    for message in messages:
        client, node = _addressee(message), message.metadata.dst_node_id
        if {client, node} & asked:
            raise AggregatorError(
                f"{method} of {type(strategy).__name__} gives {client} two messages; a round takes "
                "one for each client"
            )
        asked |= {client, node}
    return messages


def _addressee(message: Message) -> str:
    """Return the client that a message is for; without a ticket, which says it, its node."""
    ticket = message.content.config_records.get(RECORD, {})
    return (
        f"client {ticket['client']}"
        if "client" in ticket
        else f"node {message.metadata.dst_node_id}"
    )


def training_messages_of(
    made: object, strategy: flower.Strategy, server_round: int
) -> list[Message]:
    """Return the messages that `configure_train` made.

    Raises
    ------
    AggregatorError
        As `messages_of`, or if it returned none.
    """
    messages = messages_of(made, strategy, "configure_train")
    if not messages:
        raise asked_no_node(strategy, server_round)
    return messages


def asked_no_node(strategy: flower.Strategy, server_round: int) -> AggregatorError:
    """Return the error of a strategy whose `configure_train` made no messages."""
    return AggregatorError(
        f"{type(strategy).__name__} asked no node to train in round {server_round}"
    )


def aggregated(
    made: object, strategy: flower.Strategy, like: Mapping[str, Shaped]
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Return what `aggregate_train` made: arrays and metrics, or None where it made none.

    Parameters
    ----------
    like
        A lower segment, whose names and shapes the arrays must have.

    Raises
    ------
    AggregatorError
        If it returned anything but such a pair, or None, or other arrays.
    """
    if made is None:  # a method that ends without a return
        return None, None
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise AggregatorError(
            f"aggregate_train of {type(strategy).__name__} returns {described(made)}; "
            "needed is a pair of an ArrayRecord and a MetricRecord"
        )
    for part, kind in zip(made, (ArrayRecord, MetricRecord), strict=True):
        if part is not None and not isinstance(part, kind):
            raise AggregatorError(
                f"aggregate_train of {type(strategy).__name__} returns {described(part)} "
                f"in its pair where {kind.__name__} is needed"
            )
    arrays, metrics = made
    if arrays and (wrong := differences(like, arrays)):
        raise AggregatorError(
            f"aggregate_train of {type(strategy).__name__} returns other arrays than the clients' "
            f"lower segments have: {wrong}"
        )
    return arrays, metrics
