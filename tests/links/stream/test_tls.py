"""The link over TLS: certificates of the server and of its nodes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.stream.session import ClientIdentity, Session
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.sandbox.certificates import Certificates, make_certificates
from tests.links.stream.peers import DESCRIPTION, a_round, call, echo, good, numbers


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


IMPATIENT = 12.0
"""Seconds to attach where a node is refused and dials again: it gives up after half of them."""


def secured(files: Certificates, attach_timeout: float = 60.0, **options: Any) -> StreamLink:
    link = StreamLink(
        address="127.0.0.1:0",
        certificate=files.certificate,
        key=files.key,
        ca=files.ca,
        attach_timeout=attach_timeout,
        **options,
    )
    link.open(None)
    return link


def test_large_frames_travel_over_tls(files: Certificates) -> None:
    link = secured(files)
    value = numbers(20)
    with a_round(link, [good, good]) as clients:
        assert all(torch.equal(echoed, value) for echoed in call(clients, value).values())
    link.close()


def test_a_server_of_another_authority_is_not_trusted(files: Certificates, tmp_path: Path) -> None:
    """The message does not name the keys of the node's own certificate, which nobody asks for."""
    other = make_certificates(tmp_path)
    link = secured(files, IMPATIENT)

    def wary(ticket: Ticket, node: int) -> None:
        good(replace(ticket, ca=other.ca.read_text()), node)

    def careless(ticket: Ticket, node: int) -> None:
        good(replace(ticket, tls=False), node)

    def untold(ticket: Ticket, node: int) -> None:
        good(replace(ticket, ca=""), node)

    with a_round(link, [good, wary, careless, untold]) as clients:
        assert clients.alive == (0,)
        other_authority = "is from another authority than the run's ssl-ca-certfile"
        for client, message in ((1, other_authority), (3, "The run's ssl-ca-certfile is not set")):
            assert message in clients.failures[client]
            assert "link-client-ca" not in clients.failures[client]
        assert "could not reach the ServerApp" in clients.failures[2]
    link.close()


def with_identity(of: Certificates, index: int) -> Any:
    identity = ClientIdentity(*of.of_node(index))
    return lambda ticket, node: Session(ticket, node, DESCRIPTION, echo, identity).run()


def test_nodes_show_a_certificate_where_one_is_asked_for(tmp_path: Path) -> None:
    files, other = (
        make_certificates(tmp_path / "own"),
        make_certificates(tmp_path / "other", nodes=3),
    )
    link = secured(files, IMPATIENT, client_ca=files.ca)
    with a_round(link, [with_identity(files, 0), good, with_identity(other, 2)]) as clients:
        assert clients.alive == (0,)
        assert call(clients, 1) == {0: 1}
        assert "(link-client-ca), set ssl-certfile and ssl-keyfile" in clients.failures[1]
        assert "link-client-ca" not in clients.failures[2]
    link.close()


def test_a_certificate_is_good_for_its_node_only(tmp_path: Path) -> None:
    """A node certified as node-1 could otherwise attach as any client whose token it has."""
    files = make_certificates(tmp_path, nodes=2)
    link = secured(files, client_ca=files.ca)
    with a_round(link, [with_identity(files, 1), with_identity(files, 1)]) as clients:
        assert clients.failures == {
            0: "the node shows a certificate of node-1, but it is client 0: "
            "its ssl-certfile must name node-0"
        }
        assert call(clients, 1) == {1: 1}
    link.close()


def test_a_node_checks_its_own_certificate_before_it_dials(tmp_path: Path) -> None:
    files = make_certificates(tmp_path, lifetime=timedelta(minutes=-30))
    ticket = Ticket(0, 0, 1, 1, link="stream", address="127.0.0.1:1", timeout=60)
    with pytest.raises(LinkError, match=r"ssl-certfile: .*node-0.crt expired on"):
        with_identity(files, 0)(ticket, 100)
