"""A node's own word on where its uploads go: to one mixer and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr_splitmix.links.link import LinkError
from flwr_splitmix.links.stream.endpoint import is_loopback, split_address
from flwr_splitmix.links.stream.pairs import read_authority
from flwr_splitmix.links.ticket import Ticket

MIXER, MIXER_CA = "link-via", "link-via-ca"
"""Keys of a node's configuration: the mixer's address, and the authority of its certificate."""

PUBLIC = "public"
"""The authorities that gRPC comes with."""


def pinned(ticket: Ticket, node: Mapping[str, Any]) -> Ticket:
    """Return a ticket as the node's configuration allows it.

    A server names what nodes dial and whom they trust there, so it could name itself. A node with
    `link-via` dials nothing else, with TLS, and trusts the authority that `link-via-ca` names,
    never one that came with the ticket. On the loopback it needs neither.

    Raises
    ------
    LinkError
        If the ticket leads elsewhere or to no TLS, or a key is wrong; the server may read it.
    """
    address = node.get(MIXER)
    if not address:
        if node.get(MIXER_CA):
            raise LinkError(f"this node's {MIXER_CA} is set without {MIXER}; give both or neither")
        return ticket
    if ticket.address != address:
        raise LinkError(
            f"this node uploads to the mixer at {address} only ({MIXER} in its configuration), and "
            "the run's ticket leads elsewhere: set the run's link-via to that address"
        )
    host, _ = split_address(str(address), MIXER)
    if not ticket.tls and not is_loopback(host):
        raise LinkError(f"this node uploads to the mixer at {address} with TLS only")
    if not node.get(MIXER_CA):
        if is_loopback(host):
            return ticket
        raise LinkError(
            f"this node's {MIXER} is set without {MIXER_CA}: name the file of the authority that "
            f"signed the mixer's certificate, or {PUBLIC!r} for those that gRPC comes with"
        )
    if node[MIXER_CA] == PUBLIC:
        return replace(ticket, tls=True, ca="")
    authority = read_authority(Path(str(node[MIXER_CA])), MIXER_CA)
    return replace(ticket, tls=True, ca=authority.decode("ascii", "replace"))
