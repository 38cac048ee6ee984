"""Throw-away certificates for tests and demonstrations on one machine."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flwr_splitmix.links.stream.names import node_name

LIFETIME = timedelta(days=30)


@dataclass(frozen=True)
class Certificates:
    """PEM files: an authority, a server's certificate and key, and those of nodes."""

    ca: Path
    certificate: Path
    key: Path

    def of_node(self, index: int) -> tuple[Path, Path]:
        """Return the certificate and key of the node with this partition-id."""
        return self.of_client(node_name(index))

    def of_client(self, name: str) -> tuple[Path, Path]:
        """Return the certificate and key of the client of this name, a node or another."""
        return self.ca.with_name(f"{name}.crt"), self.ca.with_name(f"{name}.key")


def make_certificates(
    folder: Path,
    names: Sequence[str] = ("localhost", "127.0.0.1", "::1"),
    nodes: int = 1,
    lifetime: timedelta = LIFETIME,
    others: Sequence[str] = (),
) -> Certificates:
    """Make an authority, and certificates that it signs for a server and for nodes.

    The authority's key is discarded, so that it can sign nothing else.

    Parameters
    ----------
    folder
        Where ca.crt, server.crt, server.key, node-0.crt, node-0.key, ... are written.
    names
        Host names and IP addresses under which the server is dialled.
    nodes
        Number of nodes that get a certificate.
    lifetime
        Validity from now on; it begins an hour in the past.
    others
        Names of further clients that get a certificate, such as a ServerApp that dials a mixer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _builder("flwr-splitmix test authority", authority_key.public_key(), lifetime)
    ca = (
        authority.issuer_name(_name("flwr-splitmix test authority"))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificates = Certificates(*(folder / name for name in ("ca.crt", "server.crt", "server.key")))
    certificates.ca.write_bytes(ca.public_bytes(Encoding.PEM))
    server = ExtendedKeyUsageOID.SERVER_AUTH, names, certificates.certificate, certificates.key
    of_clients = (
        (ExtendedKeyUsageOID.CLIENT_AUTH, [name], *certificates.of_client(name))
        for name in (*map(node_name, range(nodes)), *others)
    )
    for usage, subject_names, certificate, key in (server, *of_clients):
        private = ec.generate_private_key(ec.SECP256R1())
        signed = (
            _builder(str(subject_names[0]), private.public_key(), lifetime)
            .issuer_name(ca.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general(n) for n in subject_names]), False)
            .sign(authority_key, hashes.SHA256())
        )
        certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        # Readable by its owner only, from the moment of creation.
        key.unlink(missing_ok=True)
        with os.fdopen(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
    return certificates


def _builder(
    name: str, public: ec.EllipticCurvePublicKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        # Clocks of different machines may differ a little.
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + lifetime)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
