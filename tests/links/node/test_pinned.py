"""A node whose operator has fixed where its uploads go."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.links import LinkError
from flwr_splitmix.links.node.pinned import pinned
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.sandbox.certificates import make_certificates
from tests.links.node.worst_server import Node

TICKET = Ticket(0, 7, 1, 9, link="stream", address="mixer.example:9444", ca="the server's")


def test_a_node_without_a_word_on_it_dials_what_it_is_told() -> None:
    assert pinned(TICKET, {}) is TICKET


def test_a_node_trusts_its_own_authority_and_not_the_one_it_is_sent(tmp_path: Path) -> None:
    ca = make_certificates(tmp_path).ca
    node_config = {"link-via": "mixer.example:9444", "link-via-ca": str(ca)}
    assert pinned(TICKET, node_config).ca == ca.read_text()
    assert pinned(TICKET, node_config).tls


def test_public_authorities_are_named_as_such() -> None:
    node_config = {"link-via": "mixer.example:9444", "link-via-ca": "public"}
    assert pinned(TICKET, node_config).ca == ""


@pytest.mark.parametrize(
    ("changes", "node", "message"),
    [
        ({"address": "server.example:9443"}, {}, "uploads to the mixer at mixer.example:9444 only"),
        ({"tls": False}, {}, "with TLS only"),
        ({}, {"link-via-ca": "/no/such.crt"}, "link-via-ca: /no/such.crt cannot be read"),
        ({}, {}, "is set without link-via-ca: name the file of the authority"),
    ],
)
def test_a_server_that_names_another_place_gets_nothing(
    changes: dict[str, Any], node: dict[str, Any], message: str
) -> None:
    with pytest.raises(LinkError, match=message):
        pinned(replace(TICKET, **changes), {"link-via": "mixer.example:9444", **node})


def test_an_authority_without_a_mixer_is_refused() -> None:
    with pytest.raises(LinkError, match="link-via-ca is set without link-via"):
        pinned(TICKET, {"link-via-ca": "/ca.crt"})


@pytest.mark.parametrize("value", ["", " ", 0, 0.0, False, True, 9444])
@pytest.mark.parametrize("key", ["link-via", "link-via-ca"])
def test_a_key_that_names_no_mixer_or_authority_is_refused(
    key: str, value: Any, tmp_path: Path
) -> None:
    """With link-via='' the node would upload wherever the server says."""
    node_config = {"link-via": "127.0.0.1:9444", key: value}
    message = re.escape(f"{key} is {value!r}, so this node would ") + ".*, or leave the key out"
    with pytest.raises(LinkError, match=message):
        pinned(replace(TICKET, address="127.0.0.1:9444"), node_config)
    with pytest.raises(LinkError, match=message):
        Node(tmp_path, node_config).begin()
