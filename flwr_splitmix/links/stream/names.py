"""The names in certificates: those of nodes, and those that a certificate is made for."""

from __future__ import annotations

import re

from cryptography import x509

from flwr_splitmix.links.link import LinkError


def node_name(index: int) -> str:
    """Return the name required in the certificate of the node with this partition-id."""
    return f"node-{index}"


def names_node(name: str) -> bool:
    """Return whether a name in a certificate is that of some node."""
    return re.fullmatch(r"node-[0-9]+", name, re.IGNORECASE) is not None


def names_of(certificate: bytes) -> list[str]:
    """Return the host names and IP addresses that a PEM certificate (a chain's first) is made for.

    Raises
    ------
    LinkError
        If it is not a certificate.
    """
    try:
        loaded = x509.load_pem_x509_certificate(certificate)
    except ValueError:
        raise LinkError("the link's certificate is not a PEM certificate") from None
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]
