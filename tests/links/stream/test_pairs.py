"""Unusable certificates and keys fail at once, with the name of the configuration's key."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.stream import pairs
from flwr_splitmix.links.stream.endpoint import Endpoint
from flwr_splitmix.links.stream.pairs import (
    check_signed,
    read_authority,
    read_pair,
    warn_if_private,
)
from flwr_splitmix.sandbox.certificates import Certificates, make_certificates

OVER, TO_COME = timedelta(minutes=-30), timedelta(days=1)


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path / "own")


def refusal(files: Certificates) -> str:
    """Return the error of a link made with these files, before it listens."""
    with pytest.raises(LinkError) as caught:
        StreamLink(address="127.0.0.1:0", certificate=files.certificate, key=files.key, ca=files.ca)
    return str(caught.value)


def test_a_pair_is_read_as_it_is(files: Certificates) -> None:
    pair = read_pair(files.certificate, files.key)
    assert pair == (files.certificate.read_bytes(), files.key.read_bytes())
    assert read_authority(files.ca, "link-client-ca") == files.ca.read_bytes()


def test_an_expired_certificate(tmp_path: Path) -> None:
    """With it, every node would fail to attach."""
    message = refusal(make_certificates(tmp_path, lifetime=OVER))
    assert message.startswith(f"ssl-certfile: {tmp_path / 'server.crt'} expired on 2")
    assert message.endswith(" UTC; make a new one")


def test_a_certificate_of_tomorrow(files: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    class Yesterday(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) - TO_COME

    monkeypatch.setattr(pairs, "datetime", Yesterday)
    assert "is not valid before" in refusal(files)
    assert refusal(files).endswith("UTC; wait, or set this machine's clock")


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o666])
def test_a_key_that_everyone_may_read(files: Certificates, mode: int) -> None:
    files.key.chmod(mode)
    assert refusal(files) == (
        f"ssl-keyfile: everyone on this machine may read or change {files.key} (mode {mode:04o}); "
        f"keep it to its owner (chmod 600 {files.key}), and make a new pair if somebody may have "
        "read it"
    )


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640])
def test_a_key_of_its_owner_and_a_group(files: Certificates, mode: int) -> None:
    files.key.chmod(mode)
    pair = (files.certificate.read_bytes(), files.key.read_bytes())
    assert read_pair(files.certificate, files.key) == pair


def test_a_key_of_another_certificate(files: Certificates) -> None:
    """Not as 'cannot listen on ...; is its port taken?'."""
    files.key.write_bytes(files.of_node(0)[1].read_bytes())
    assert refusal(files) == (
        f"ssl-keyfile: {files.key} is not the key of the certificate {files.certificate} "
        "(ssl-certfile); give the two that were made together"
    )


def test_a_key_that_is_none_or_encrypted(files: Certificates) -> None:
    secret = load_pem_private_key(files.key.read_bytes(), password=None)
    locked = secret.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")
    )
    files.key.write_bytes(locked)
    assert "is encrypted, and nobody is there to be asked for its password" in refusal(files)
    files.key.write_bytes(b"no key")
    assert refusal(files) == f"ssl-keyfile: {files.key} is not a PEM private key"


def test_an_authority_that_did_not_sign_the_certificate(
    files: Certificates, tmp_path: Path
) -> None:
    """With it, every node would dial until its time limit."""
    other = make_certificates(tmp_path / "other")
    message = refusal(replace(files, ca=other.ca))
    assert message.startswith(
        f"ssl-ca-certfile: {other.ca} has not signed the certificate (ssl-cert"
    )
    assert message.endswith("add intermediate certificates to ssl-certfile")
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes(other.ca.read_bytes() + files.ca.read_bytes())
    Endpoint("127.0.0.1:0", certificate=files.certificate, key=files.key, ca=bundle)


def signed(name: str, by: tuple[str, ec.EllipticCurvePrivateKey] | None, path: Path) -> Any:
    """Write a certificate, signed by another's name and key or else by itself; return its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer, signer = by or (name, key)
    now = datetime.now(UTC)
    subject, authority = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer)
    )
    builder = x509.CertificateBuilder(authority, subject, key.public_key(), 1)
    builder = builder.not_valid_before(now - TO_COME).not_valid_after(now + TO_COME)
    path.write_bytes(builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM))
    return key


def test_an_authority_of_ones_own_that_is_not_named_is_warned_of(
    files: Certificates,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise every node would dial for half of attach-timeout."""
    monkeypatch.setenv(
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(make_certificates(tmp_path / "public").ca)
    )
    chain = files.certificate.read_bytes()
    warn_if_private(chain, "ssl-ca-certfile")
    (record,) = caplog.records
    warning = record.getMessage()
    assert warning.startswith("ssl-ca-certfile is not set, so nodes trust public authorities only")
    issuer = x509.load_pem_x509_certificate(chain).issuer.rfc4514_string()
    assert f"{issuer!r}; if that is an authority of your own, set ssl-ca-certfile" in warning
    caplog.clear()
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(files.ca))
    warn_if_private(chain, "ssl-ca-certfile")
    assert not caplog.records


def test_a_link_looks_for_the_authority_of_its_certificate(
    files: Certificates, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The authorities are those in gRPC's package, as at a node, and not this machine's."""
    monkeypatch.delenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", raising=False)
    for ca in (None, files.ca):
        caplog.clear()
        link = StreamLink(
            address="127.0.0.1:0", certificate=files.certificate, key=files.key, ca=ca
        )
        link.open(None)
        link.close()
        assert ("ssl-ca-certfile is not set" in caplog.text) is (ca is None)


def test_a_certificate_leads_to_its_authority_by_others_or_is_its_own(tmp_path: Path) -> None:
    root, between, leaf = (tmp_path / f"{name}.crt" for name in ("root", "between", "leaf"))
    signer = signed("root", None, root)
    signer = signed("between", ("root", signer), between)
    signed("leaf", ("between", signer), leaf)
    alone, chain = leaf.read_bytes(), leaf.read_bytes() + between.read_bytes()
    for authority in (root, between, leaf):
        check_signed(chain, authority.read_bytes(), "ssl-ca-certfile", "ca.crt")
    check_signed(root.read_bytes(), root.read_bytes(), "ssl-ca-certfile", "ca.crt")
    with pytest.raises(LinkError, match=r"whose issuer is 'CN=between', so no node could connect"):
        check_signed(alone, root.read_bytes(), "ssl-ca-certfile", "ca.crt")
    whole = chain + root.read_bytes()
    signed("root", None, root)  # of the same name, with another key
    for certificates in (chain, whole):
        with pytest.raises(LinkError, match=r"whose issuer is 'CN=root'"):
            check_signed(certificates, root.read_bytes(), "ssl-ca-certfile", "ca.crt")


def test_authorities(files: Certificates, tmp_path: Path) -> None:
    """A bundle is valid as long as one of its authorities is."""
    old = make_certificates(tmp_path / "old", lifetime=OVER)
    with pytest.raises(LinkError, match=r"link-client-ca: .*ca.crt expired on"):
        read_authority(old.ca, "link-client-ca")
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes(old.ca.read_bytes() + files.ca.read_bytes())
    assert read_authority(bundle, "ssl-ca-certfile") == bundle.read_bytes()
    with pytest.raises(LinkError, match=r"ssl-ca-certfile: .*server.key is not a PEM certificate"):
        read_authority(files.key, "ssl-ca-certfile")
