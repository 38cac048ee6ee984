"""Which certificates an endpoint needs, in errors that name its options as they are set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flwr_splitmix.links.link import LinkError


@dataclass(frozen=True)
class OptionNames:
    """The names of an endpoint and its options in errors.

    Attributes
    ----------
    endpoint
        The program that listens.
    address, certificate, key, ca, client_ca
        Options with a value.
    example
        An address, as an example.
    pair
        Certificate and key, by all names that they have.
    both
        How certificate and key are given: the words after "give".
    insecure
        How plaintext is allowed.
    """

    endpoint: str
    address: str
    example: str
    certificate: str
    key: str
    ca: str
    client_ca: str
    pair: tuple[str, str]
    both: str
    insecure: str


PAIR = "certificate (ssl-certfile)", "key (ssl-keyfile)"
"""Certificate and key as arguments of a link, with the keys of the apps."""

LINK = OptionNames(
    endpoint="the link",
    address="link-address",
    example="0.0.0.0:9443",
    certificate="ssl-certfile",
    key="ssl-keyfile",
    ca="ssl-ca-certfile",
    client_ca="link-client-ca",
    pair=PAIR,
    both="certificate= and key= to StreamLink (in the apps ssl-certfile and ssl-keyfile)",
    insecure="insecure=True (in the apps link-insecure=true)",
)
"""The keys of a run's configuration, and the arguments of `StreamLink`."""


def check_pair(
    certificate: str | Path | None, key: str | Path | None, names: tuple[str, str], use: str = ""
) -> None:
    """Check that a certificate and its key are given together, or neither.

    Parameters
    ----------
    names
        Of both.
    use
        Their purpose, if that may not be known.

    Raises
    ------
    LinkError
        If one of them is missing.
    """
    if (certificate is None) == (key is None):
        return
    present, missing = names if key is None else reversed(names)
    raise LinkError(
        f"{present} is set without {missing}; give both or neither" + (f": {use}" if use else "")
    )


def check_tls(
    names: OptionNames,
    host: str,
    *,
    certificate: str | Path | None,
    key: str | Path | None,
    ca: str | Path | None,
    client_ca: str | Path | None,
    plaintext: bool,
) -> None:
    """Check that an endpoint has the certificates that it needs.

    Parameters
    ----------
    host
        Where it listens.
    plaintext
        Whether it may do without TLS there.

    Raises
    ------
    LinkError
        If certificate or key is missing beside the other, both beside an authority, or TLS.
    """
    check_pair(certificate, key, names.pair)
    if certificate is not None:
        return
    for name, authority in ((names.ca, ca), (names.client_ca, client_ca)):
        if authority:
            raise LinkError(
                f"{name} is set, but {names.endpoint} has no certificate of its own; give "
                f"{names.both}, too"
            )
    if not plaintext:
        raise LinkError(
            f"{names.endpoint} would listen on {host} without TLS: give {names.both}, or listen on "
            f"127.0.0.1, or allow it with {names.insecure}"
        )
