"""A node's own word on links without TLS, which the server alone would choose."""

from __future__ import annotations

import logging

from flwr.app import ConfigRecord, Context

from flwr_splitmix.links.link import LinkError
from flwr_splitmix.links.node.state import run_name
from flwr_splitmix.links.stream.endpoint import is_loopback, split_address
from flwr_splitmix.links.stream.pairs import CERTIFICATE, KEY
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.words import one_line

log = logging.getLogger("flwr.splitmix")

_WARNED_RECORD = "splitmix-told"
"""Record in Flower's context that names the run whose plaintext the node's log has."""


def check_plaintext(ticket: Ticket, context: Context, policy: NodePolicy) -> None:
    """Refuse a ticket to another machine without TLS if the policy does, else warn once a run.

    Parameters
    ----------
    ticket
        The ticket, as restricted by the node's `link-via`.
    context
        The message's context: the node's configuration, and Flower's state of the run.
    policy
        The node's policy. Where it leaves `allow_insecure` open, a node with a certificate of its
        own refuses, as it expects TLS.

    Raises
    ------
    LinkError
        If the node refuses, or the ticket's address is malformed; the message may be sent to the
        server.
    """
    if ticket.tls:
        return
    address = ticket.address
    if address != one_line(address):
        raise LinkError("the ticket's address is longer than a host and a port, or has line breaks")
    host, _ = split_address(address, "the ticket's address")
    if is_loopback(host):
        return
    tls_keys = [key for key in (CERTIFICATE, KEY) if context.node_config.get(key) is not None]
    refuses = bool(tls_keys) if policy.allow_insecure is None else not policy.allow_insecure
    if refuses:
        because = (
            f"{tls_keys[0]} is set" if policy.allow_insecure is None else "allow-insecure = false"
        )
        raise LinkError(
            f"this node does not dial {address} without TLS ({because}): give the run's link a "
            f"certificate ({CERTIFICATE} and {KEY}, without link-insecure), or, on a network that "
            "is encrypted already, set allow-insecure = true in the node's --node-config"
        )
    run = run_name(ticket.run, context)
    if context.state.config_records.get(_WARNED_RECORD) == ConfigRecord({"run": run}):
        return
    context.state[_WARNED_RECORD] = ConfigRecord({"run": run})
    log.warning(
        "client %d: uploads and this node's token go to %s without TLS, so that anyone on the way "
        "can read and change them (allow-insecure = false refuses that)",
        ticket.client,
        address,
    )
