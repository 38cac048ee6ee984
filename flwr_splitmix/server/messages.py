"""A round's messages and their tickets, inside a Flower run and outside of one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, Metadata, RecordDict

from flwr_splitmix.links.ticket import Ticket, with_record

log = logging.getLogger("flwr.splitmix")


_RECEIVERS = {"train_config": "mods and the aggregator", "evaluate_config": "mods"}
"""By argument of `start`, who reads its entries; an aggregator has no part in an evaluation."""


def message_config(name: str, config: ConfigRecord | None) -> ConfigRecord:
    """Return the entries that messages carry, with a warning that a `client_fn` sees none.

    Parameters
    ----------
    name
        The argument's name.
    """
    if config:
        log.warning(
            "%s (%s) reaches %s, but no client_fn: clients are built from the "
            "run configuration (context.run_config)",
            name,
            ", ".join(sorted(config)),
            _RECEIVERS[name],
        )
    return config or ConfigRecord()


def round_config(server_round: int, config: ConfigRecord) -> ConfigRecord:
    """Return a copy of the entries with "server-round", as the messages of Flower's strategies."""
    return ConfigRecord({**config, "server-round": server_round})


def with_tickets(
    messages: Sequence[Message],
    nodes: Mapping[int, int],
    ticket_of: Callable[..., Ticket],
    attempts: Callable[[int], Mapping[str, Any]],
) -> list[Message]:
    """Put each node's ticket into its message and return the messages sorted by client index.

    Parameters
    ----------
    nodes
        Client index -> node id.
    ticket_of
        Makes the round's ticket from a client's index and its entries about earlier attempts.
    attempts
        Returns, by a client's index, the ticket's entries about earlier attempts, in which it may
        have sent what it is asked for.
    """
    client_of = {node: client for client, node in nodes.items()}
    for message in messages:
        client = client_of[message.metadata.dst_node_id]
        ticket = ticket_of(client=client, **attempts(client))
        message.content = with_record(message.content, ticket.to_record())
    return sorted(messages, key=lambda message: client_of[message.metadata.dst_node_id])


def messages_to(
    nodes: Sequence[int], content: RecordDict, message_type: str, *, in_run: bool
) -> list[Message]:
    """Return one message per node, each with its own copy of the content.

    Outside a Flower run a message needs explicit metadata, which is created here.
    """
    return [
        Message(RecordDict(dict(content.items())), dst_node_id=node, message_type=message_type)
        if in_run
        else Message(  # type: ignore[call-overload]
            content=RecordDict(dict(content.items())), metadata=_metadata(node, message_type)
        )
        for node in nodes
    ]


def _metadata(node: int, message_type: str) -> Metadata:
    return Metadata(
        run_id=0,
        message_id=f"local-{node}",
        src_node_id=0,
        dst_node_id=node,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=3600.0,
        message_type=message_type,
    )
