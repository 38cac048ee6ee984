"""A node's own restriction of its uploads to one mixer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr_splitmix.links.link import LinkError
from flwr_splitmix.links.node.keys import MIXER, MIXER_CA
from flwr_splitmix.links.stream.endpoint import is_loopback, split_address
from flwr_splitmix.links.stream.pairs import read_authority
from flwr_splitmix.links.ticket import Ticket

PUBLIC = "public"
"""Value of `link-via-ca` for gRPC's default authorities."""


_REMEDIES = {
    MIXER: "would upload wherever the server says; name the mixer's HOST:PORT",
    MIXER_CA: (
        "would trust no authority of its own; name the file of the one that signed the mixer's "
        f"certificate, or {PUBLIC!r}"
    ),
}


def own_mixer(node: Mapping[str, Any]) -> str:
    """Return the address of the only mixer that a node uploads to; "" if it names none.

    Raises
    ------
    LinkError
        If `link-via` or `link-via-ca` is in the node's configuration and names nothing.
    """
    for key, remedy in _REMEDIES.items():
        value = node.get(key)
        if key in node and (not isinstance(value, str) or not value.strip()):
            raise LinkError(f"{key} is {value!r}, so this node {remedy}, or leave the key out")
    return str(node.get(MIXER, ""))


def pinned(ticket: Ticket, node: Mapping[str, Any]) -> Ticket:
    """Return a ticket as restricted by the node's configuration.

    The server names the address that nodes dial and the authority they trust, so it could name
    itself. A node with `link-via` dials no other address, uses TLS, and trusts the authority in
    `link-via-ca`, never one from the ticket. On the loopback, TLS and `link-via-ca` are optional.

    Raises
    ------
    LinkError
        If the ticket has another address or no TLS, or a key is invalid; the message may be sent
        to the server.
    """
    address = own_mixer(node)
    if not address:
        if MIXER_CA in node:
            raise LinkError(f"this node's {MIXER_CA} is set without {MIXER}; give both or neither")
        return ticket
    if ticket.address != address:
        raise LinkError(
            f"this node uploads to the mixer at {address} only ({MIXER} in its configuration), and "
            "the run's ticket leads elsewhere: set the run's link-via to that address"
        )
    host, _ = split_address(address, MIXER)
    if not ticket.tls and not is_loopback(host):
        raise LinkError(f"this node uploads to the mixer at {address} with TLS only")
    if MIXER_CA not in node:
        if is_loopback(host):
            return ticket
        raise LinkError(
            f"this node's {MIXER} is set without {MIXER_CA}: name the file of the authority that "
            f"signed the mixer's certificate, or {PUBLIC!r} for those that gRPC comes with"
        )
    if node[MIXER_CA] == PUBLIC:
        return replace(ticket, tls=True, ca="")
    authority = read_authority(Path(node[MIXER_CA]), MIXER_CA)
    return replace(ticket, tls=True, ca=authority.decode("ascii", "replace"))
