"""Certificates, private keys and authorities, read and checked before anything starts."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from flwr_splitmix.files.home import expanded
from flwr_splitmix.links.link import LinkError

log = logging.getLogger("flwr.splitmix")

CERTIFICATE, KEY = "ssl-certfile", "ssl-keyfile"
"""Keys in the configuration of a run, and of a node."""


def read_pair(
    certificate: str | Path, key: str | Path, names: tuple[str, str] = (CERTIFICATE, KEY)
) -> tuple[bytes, bytes]:
    """Read a certificate (or a chain, the holder's first) and its private key.

    Parameters
    ----------
    certificate, key
        Their PEM files.
    names
        Their names in errors.

    Returns
    -------
    Both, as PEM.

    Raises
    ------
    LinkError
        If a file cannot be read or is not PEM, the certificate is not currently valid, or the
        private key is encrypted, accessible to everyone or another certificate's. The message
        names the option.
    """
    certificate_name, key_name = names
    certificate = expanded(certificate, certificate_name, LinkError)
    key = expanded(key, key_name, LinkError)
    chain, secret = _read(certificate, certificate_name), _read(key, key_name)
    mode = stat.S_IMODE(key.stat().st_mode)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise LinkError(
            f"{key_name}: everyone on this machine may read or change {key} (mode {mode:04o}); "
            "keep it to its owner "
            f"(chmod 600 {key}), and make a new pair if somebody may have read it"
        )
    (loaded, *_) = _certificates(chain, certificate_name, certificate)
    if wrong := _not_now(loaded):
        raise LinkError(f"{certificate_name}: {certificate} {wrong}")
    try:
        private = load_pem_private_key(secret, password=None)
    except TypeError:
        raise LinkError(
            f"{key_name}: {key} is encrypted, and nobody is there to be asked for its password; "
            "give the key without one"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise LinkError(f"{key_name}: {key} is not a PEM private key") from None
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if private.public_key().public_bytes(*form) != loaded.public_key().public_bytes(*form):
        raise LinkError(
            f"{key_name}: {key} is not the key of the certificate {certificate} "
            f"({certificate_name}); give the two that were made together"
        )
    return chain, secret


def read_authority(path: str | Path, name: str) -> bytes:
    """Read the certificates of authorities; `name` is the configuration key.

    Raises
    ------
    LinkError
        If the file cannot be read or is not PEM, or none of them is currently valid.
    """
    path = expanded(path, name, LinkError)
    data = _read(path, name)
    wrong = [_not_now(authority) for authority in _certificates(data, name, path)]
    if all(wrong):
        raise LinkError(f"{name}: {path} {wrong[0]}")
    return data


def check_signed(chain: bytes, authorities: bytes, name: str, path: str) -> None:
    """Check that a certificate leads to one of the authorities that its peers will trust.

    Parameters
    ----------
    chain
        PEM: the certificate, then the intermediate ones that are sent with it.
    authorities
        PEM: the authorities, or the certificate itself.
    name, path
        Configuration key and file of the authorities.

    Raises
    ------
    LinkError
        If it does not: no peer could connect, which would show only after its time limit.
    """
    unsigned = _not_signed_by(x509.load_pem_x509_certificates(authorities), chain)
    if unsigned is not None:
        raise LinkError(
            f"{name}: {path} has not signed the certificate ({CERTIFICATE}), whose issuer is "
            f"{unsigned.issuer.rfc4514_string()!r}, so no node could connect; give the file of "
            f"that authority, or add intermediate certificates to {CERTIFICATE}"
        )


def warn_if_private(chain: bytes, name: str) -> None:
    """Log if no public authority signed a certificate, and peers are to trust only those.

    Parameters
    ----------
    chain
        PEM: the certificate, then the intermediate ones that are sent with it.
    name
        Configuration key of the authority, which is not set.
    """
    trusted = _public_authorities()
    unsigned = _not_signed_by(trusted, chain)
    if trusted and unsigned is not None:
        log.warning(
            "%s is not set, so nodes trust public authorities only, and none that gRPC knows here "
            "has signed the link's certificate, whose issuer is %r; if that is an authority of "
            "your own, set %s to its file",
            name,
            unsigned.issuer.rfc4514_string(),
            name,
        )


def _public_authorities() -> list[x509.Certificate]:
    """Return the authorities that gRPC trusts by default, as far as they can be found and read."""
    named = os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH")
    packaged = resources.files("grpc").joinpath("_cython", "_credentials", "roots.pem")
    file = Path(named) if named else packaged
    if not file.is_file():
        return []
    blocks = re.findall(rb"-+BEGIN CERTIFICATE-+.*?-+END CERTIFICATE-+", file.read_bytes(), re.S)
    read = []
    for block in blocks:
        with warnings.catch_warnings(), contextlib.suppress(ValueError):
            warnings.simplefilter("ignore")  # of odd serial numbers
            read.append(x509.load_pem_x509_certificate(block))
    return read


def _not_signed_by(trusted: Sequence[x509.Certificate], chain: bytes) -> x509.Certificate | None:
    """Return the last certificate of a chain that no authority signed; None if one did."""
    holder, *between = x509.load_pem_x509_certificates(chain)
    while not any(holder == one or _signed(holder, one) for one in trusted):
        signer = next((one for one in between if _signed(holder, one)), None)
        if signer is None:
            return holder
        between.remove(signer)
        holder = signer
    return None


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether an authority signed a certificate, as far as its algorithm is known here."""
    if certificate.issuer != authority.subject:
        return False
    try:
        certificate.verify_directly_issued_by(authority)
    except InvalidSignature:
        return False
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return True
    return True


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LinkError(f"{name}: {path} cannot be read: {error.strerror}") from None


def _certificates(data: bytes, name: str, path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise LinkError(f"{name}: {path} is not a PEM certificate") from None


def _not_now(certificate: x509.Certificate) -> str:
    """Return why a certificate is not currently valid; "" if it is."""
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; make a new one"
    if now < certificate.not_valid_before_utc:
        return (
            f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; "
            "wait, or set this machine's clock"
        )
    return ""
