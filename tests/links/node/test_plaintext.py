"""A node that expects TLS is not talked out of it by a server."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.links.node.plaintext import check_plaintext
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.privacy.journal import read_journal
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.sandbox.certificates import make_certificates
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy
from tests.links.fake_grid import FakeGrid, OnFakeGrid, toy_app
from tests.links.node.worst_server import Node

AWAY = "198.51.100.7:9443"  # of RFC 5737: nobody is there
TICKET = Ticket(0, 7, 1, 9, link="stream", address=AWAY, tls=False, run="psl-1")
CERTIFIED = {"ssl-certfile": "/node.crt", "ssl-keyfile": "/node.key"}


def context(**node_config: Any) -> Context:
    return Context(run_id=5, node_id=9, node_config=node_config, state=RecordDict(), run_config={})


def admit(node: Mapping[str, Any], ticket: Ticket = TICKET) -> None:
    check_plaintext(ticket, context(**node), NodePolicy.of_node(node))


@pytest.mark.parametrize(
    ("node", "because"),
    [
        (CERTIFIED, "ssl-certfile is set"),
        ({"ssl-keyfile": "/node.key"}, "ssl-keyfile is set"),
        ({"allow-insecure": False}, "allow-insecure = false"),
        ({**CERTIFIED, "allow-insecure": False}, "allow-insecure = false"),
    ],
)
@pytest.mark.parametrize("address", [AWAY, "server.example:9443", "[2001:db8::7]:9443"])
def test_plaintext_to_another_machine_is_refused(
    node: dict[str, Any], because: str, address: str
) -> None:
    with pytest.raises(LinkError) as refused:
        admit(node, replace(TICKET, address=address))
    message = str(refused.value)
    assert message.startswith(
        f"this node does not dial {address} without TLS ({because}): give the"
    )
    assert message.endswith("set allow-insecure = true in the node's --node-config")


@pytest.mark.parametrize("node", [CERTIFIED, {"allow-insecure": False}])
@pytest.mark.parametrize(
    "ticket",
    [
        replace(TICKET, tls=True),
        replace(TICKET, address="127.0.0.1:9443"),
        replace(TICKET, address="[::1]:9443"),
        replace(TICKET, address="localhost:9443"),
    ],
)
def test_tls_and_the_loopback_are_not_concerned(
    node: dict[str, Any], ticket: Ticket, caplog: pytest.LogCaptureFixture
) -> None:
    admit(node, ticket)
    assert caplog.text == ""


@pytest.mark.parametrize("node", [{}, {**CERTIFIED, "allow-insecure": True}])
def test_where_it_is_allowed_the_log_says_so_once_a_run(
    node: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Each round is another process, with the same context."""
    caplog.set_level(logging.WARNING, "flwr.splitmix")
    flower, policy = context(**node), NodePolicy.of_node(node)
    for ticket in (TICKET, replace(TICKET, server_round=2), replace(TICKET, run="psl-2")):
        check_plaintext(ticket, flower, policy)
    messages = [record.getMessage() for record in caplog.records]
    expected = f"client 0: uploads and this node's token go to {AWAY} without TLS"
    assert [line.startswith(expected) for line in messages] == [True, True]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_word_on_the_link_begins_no_ledger(allowed: bool, tmp_path: Path) -> None:
    node = Node(tmp_path, {"allow-insecure": allowed})
    node.begin()
    assert node.client.guard is None
    node.end(finish=False)


def test_a_scheme_cannot_pass_for_the_loopback() -> None:
    with pytest.raises(LinkError, match=r"the ticket's address is 'ipv4:198\.51\.100\.7:9443'"):
        admit(CERTIFIED, replace(TICKET, address="ipv4:198.51.100.7:9443"))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("[::1%3A2:3:4:5:6:7]:9443", r"the ticket's address is '\[::1%3A2"),  # gRPC: ::1:2:3:...
        ("127.0.0.1:9443\n", "longer than a host and a port, or has line breaks"),
        ("127.0.0.1:" + "0" * 600 + "1", "longer than a host and a port, or has line breaks"),
    ],
    ids=["escape", "line break", "long"],
)
def test_what_grpc_might_read_otherwise_cannot_pass_for_the_loopback(
    address: str, message: str
) -> None:
    with pytest.raises(LinkError, match=message):
        admit(CERTIFIED, replace(TICKET, address=address))


def test_nothing_leaves_a_node_that_refuses(tmp_path: Path) -> None:
    """A run with link-insecure=true must not get token and uploads in clear from such nodes."""
    toy = Toy(clients=1)
    certificate, key = make_certificates(tmp_path / "certificates").of_node(0)
    node_config = {"ssl-certfile": str(certificate), "ssl-keyfile": str(key)}
    grid = FakeGrid(toy_app(toy), 1, **{"state-dir": str(tmp_path), **node_config})
    strategy = PSL(toy.upper(), device="cpu", evaluation="none")
    link = StreamLink(
        address="127.0.0.1:0", advertise=AWAY, insecure=True, run="psl-1", attach_timeout=20
    )
    strategy.link = OnFakeGrid(link, grid)
    try:
        with pytest.raises(LinkError, match=f"does not dial {AWAY} without TLS"):
            strategy.start(None, to_arrays(toy.lower().state_dict()), 1)  # type: ignore[arg-type]
    finally:
        grid.wait()
    (line,) = read_journal(tmp_path / "audit-0.jsonl")
    assert "without TLS (ssl-certfile is set)" in line["refused"]
