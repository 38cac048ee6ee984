"""A node whose operator has fixed where its uploads go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.links import LinkError
from flwr_splitmix.links.node.pinned import pinned
from flwr_splitmix.links.stream.certificates import make_certificates
from flwr_splitmix.links.ticket import Ticket

TICKET = Ticket(0, 7, 1, 9, link="stream", address="mixer.example:9444", ca="the server's")


def test_a_node_without_a_word_on_it_dials_what_it_is_told() -> None:
    assert pinned(TICKET, {}) is TICKET


def test_a_node_trusts_its_own_authority_and_not_the_one_it_is_sent(tmp_path: Path) -> None:
    ca = make_certificates(tmp_path).ca
    own = {"link-via": "mixer.example:9444", "link-via-ca": str(ca)}
    assert pinned(TICKET, own).ca == ca.read_text()
    assert pinned(TICKET, own).tls


def test_public_authorities_are_named_as_such() -> None:
    own = {"link-via": "mixer.example:9444", "link-via-ca": "public"}
    assert pinned(TICKET, own).ca == ""


@pytest.mark.parametrize(
    ("changes", "node", "said"),
    [
        ({"address": "server.example:9443"}, {}, "uploads to the mixer at mixer.example:9444 only"),
        ({"tls": False}, {}, "with TLS only"),
        ({}, {"link-via": "", "link-via-ca": "/ca.crt"}, "link-via-ca is set without link-via"),
        ({}, {"link-via-ca": "/no/such.crt"}, "link-via-ca: /no/such.crt cannot be read"),
        ({}, {}, "is set without link-via-ca: name the file of the authority"),
    ],
)
def test_a_server_that_names_another_place_gets_nothing(
    changes: dict[str, Any], node: dict[str, Any], said: str
) -> None:
    with pytest.raises(LinkError, match=said):
        pinned(replace(TICKET, **changes), {"link-via": "mixer.example:9444", **node})
