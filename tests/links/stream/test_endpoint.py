"""Addresses and certificates: errors are reported before anything listens."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.stream.endpoint import (
    Endpoint,
    is_loopback,
    join_address,
    own_address,
    split_address,
)
from flwr_splitmix.links.stream.names import names_of
from flwr_splitmix.sandbox.certificates import Certificates, make_certificates


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    names = ("node.example", "*.lab.example", "192.0.2.7", "::1", "127.0.0.1")
    return make_certificates(tmp_path_factory.mktemp("certificates"), names)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:9443", ("127.0.0.1", 9443)),
        ("node.example:0", ("node.example", 0)),
        ("node.example", ("node.example", None)),
        ("[2001:db8::1]:9443", ("2001:db8::1", 9443)),
        ("[::]", ("::", None)),
        ("::1", ("::1", None)),
    ],
)
def test_addresses_are_taken_apart(text: str, parts: tuple[str, int | None]) -> None:
    assert split_address(text, "link-address") == parts
    host, port = parts
    if port is not None:
        assert join_address(host, port) == text


@pytest.mark.parametrize(
    "text",
    ["", ":9443", "host:", "host:port", "host:65536", "host:-1", "[::1", "[::1]9443", "[host]:1",
     "http://host:1", "a b:1", "1:2:3:4", "host:\u0661", "[::1%3A2:3:4:5:6:7]:1", "::1%1",
     "[::1%2Eother.example]:1"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(LinkError, match="link-advertise is "):
        split_address(text, "link-advertise")


def test_the_address_to_listen_on_needs_a_port() -> None:
    with pytest.raises(LinkError, match="link-address is 'localhost'; it must be host:port"):
        Endpoint("localhost")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"])
def test_plaintext_is_for_the_loopback(host: str) -> None:
    assert is_loopback(host)
    endpoint = Endpoint(join_address(host, 0))
    assert not endpoint.tls
    assert endpoint.credentials() is None
    assert endpoint.dialled(77) == join_address(host, 77)


WITHOUT_TLS = (
    r"without TLS: give certificate= and key= to StreamLink \(in the apps ssl-certfile and "
    r"ssl-keyfile\), .* allow it with insecure=True \(in the apps link-insecure=true\)"
)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.7:9443", "node.example:9443"])
def test_plaintext_elsewhere_must_be_asked_for(address: str) -> None:
    with pytest.raises(LinkError, match=WITHOUT_TLS):
        Endpoint(address)
    assert not Endpoint(address, insecure=True).tls


def test_a_link_listens_on_the_loopback_by_default() -> None:
    assert StreamLink().endpoint.host == "127.0.0.1"


def test_certificates_come_whole(files: Certificates, tmp_path: Path) -> None:
    with pytest.raises(LinkError, match=r"certificate \(ssl-certfile\) is set without key \(ssl-k"):
        Endpoint("127.0.0.1:0", certificate=files.certificate)
    with pytest.raises(LinkError, match="link-client-ca is set, but the link has no certificate"):
        Endpoint("127.0.0.1:0", client_ca=files.ca)
    with pytest.raises(LinkError, match=r"ssl-ca-certfile is set, but .*give certificate= and key"):
        Endpoint("127.0.0.1:0", ca=files.ca)
    with pytest.raises(LinkError, match=r"ssl-certfile: .*missing.crt cannot be read: No such"):
        Endpoint("127.0.0.1:0", certificate=tmp_path / "missing.crt", key=files.key)
    with pytest.raises(LinkError, match=r"ssl-keyfile: .*missing.key cannot be read: No such"):
        Endpoint("127.0.0.1:0", certificate=files.certificate, key=tmp_path / "missing.key")
    with pytest.raises(LinkError, match=r"link-client-ca: .*missing.crt cannot be read: No such"):
        Endpoint(
            "127.0.0.1:0",
            certificate=files.certificate,
            key=files.key,
            client_ca=tmp_path / "missing.crt",
        )
    with pytest.raises(LinkError, match=r"ssl-certfile: .*server.key is not a PEM certificate"):
        Endpoint("127.0.0.1:0", certificate=files.key, key=files.key)
    with pytest.raises(LinkError, match="is not a PEM certificate"):
        names_of(files.key.read_bytes())


@pytest.mark.parametrize(
    ("advertise", "dialled"),
    [
        ("node.example", "node.example:5"),
        ("NODE.example:443", "NODE.example:443"),
        ("a.lab.example", "a.lab.example:5"),
        ("192.0.2.7:443", "192.0.2.7:443"),
        ("[::1]:443", "[::1]:443"),
        ("::1", "[::1]:5"),
    ],
)
def test_nodes_dial_what_is_advertised(files: Certificates, advertise: str, dialled: str) -> None:
    endpoint = Endpoint(
        "0.0.0.0:0",
        advertise=advertise,
        certificate=files.certificate,
        key=files.key,
        ca=files.ca,
    )
    endpoint.check_names()
    assert endpoint.dialled(5) == dialled
    assert endpoint.ca.startswith("-----BEGIN CERTIFICATE-----")


@pytest.mark.parametrize("advertise", ["other.example", "a.b.lab.example", "192.0.2.8"])
def test_a_certificate_for_another_name_is_noticed_at_once(
    files: Certificates, advertise: str
) -> None:
    """`splitmix check` makes the link and opens none."""
    with pytest.raises(
        LinkError, match=rf"would dial {advertise}, but .* node.example.* advertise="
    ):
        StreamLink(
            address="0.0.0.0:0", advertise=advertise,
            certificate=files.certificate, key=files.key, ca=files.ca,
        )  # fmt: skip


def test_who_listens_everywhere_advertises_its_own_address() -> None:
    assert Endpoint("0.0.0.0:0", insecure=True).dialled(9) == f"{own_address()}:9"
    assert Endpoint("[::]:0", insecure=True).dialled(9) == f"{own_address()}:9"


def test_certificates_made_on_the_spot(files: Certificates) -> None:
    assert names_of(files.certificate.read_bytes()) == [
        "node.example", "*.lab.example", "192.0.2.7", "::1", "127.0.0.1",
    ]  # fmt: skip
    certificate, own_key = files.of_node(0)
    assert names_of(certificate.read_bytes()) == ["node-0"]
    for key in (files.key, own_key):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
