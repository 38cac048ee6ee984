"""The endpoint of the stream link: where it listens, what nodes dial, and the certificates."""

from __future__ import annotations

import errno
import ipaddress
import socket
from pathlib import Path

import grpc

from flwr_splitmix.links.link import LinkError
from flwr_splitmix.links.stream.names import names_of
from flwr_splitmix.links.stream.pairs import (
    check_signed,
    read_authority,
    read_pair,
    warn_if_private,
)
from flwr_splitmix.links.stream.tls import LINK, OptionNames, check_tls
from flwr_splitmix.values import check_truth


class Endpoint:
    """Addresses and certificates, checked before anything starts.

    Parameters
    ----------
    address
        "host:port" to listen on, IPv6 in brackets; port 0 takes a free one.
    advertise
        "host" or "host:port" that nodes dial, if it differs from `address`: a public name, or the
        outer side of a port forward. None: the host to listen on, or this machine's own address if
        that host is unspecified (0.0.0.0 or ::).
    certificate, key
        PEM files of the server's certificate (chain) and private key.
    ca
        PEM file of the authority that signed the certificate, sent to the nodes; None: nodes trust
        gRPC's default authorities.
    client_ca
        PEM file of an authority; nodes must then show a certificate that it signed and that names
        them: `node-` followed by their partition-id.
    insecure
        Whether to allow plaintext on addresses other than the loopback.
    names
        Names of these options in errors.

    Raises
    ------
    LinkError
        If an address is malformed, a file cannot be read, a certificate is not currently valid, a
        key does not match its certificate or is accessible to everyone, the authority has not
        signed the certificate, or TLS is needed but missing.
    ValueError
        If `insecure` is neither true nor false.
    """

    def __init__(
        self,
        address: str,
        *,
        advertise: str | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        ca: str | Path | None = None,
        client_ca: str | Path | None = None,
        insecure: bool = False,
        names: OptionNames = LINK,
    ) -> None:
        check_truth("insecure", insecure)
        self.host, port = split_address(address, names.address)
        if port is None:
            raise LinkError(
                f"{names.address} is {address!r}; it must be host:port, e.g. {names.example}"
            )
        self.address = join_address(self.host, port)
        self._advertise = None if not advertise else split_address(advertise, "link-advertise")
        check_tls(
            names,
            self.host,
            certificate=certificate,
            key=key,
            ca=ca,
            client_ca=client_ca,
            plaintext=insecure or is_loopback(self.host),
        )
        self._certificate, self._key = None, None
        if certificate is not None and key is not None:
            pair_names = names.certificate, names.key
            self._certificate, self._key = read_pair(certificate, key, pair_names)
        self._ca = None if not ca else read_authority(ca, names.ca)
        if self._certificate is not None and self._ca is not None:
            check_signed(self._certificate, self._ca, names.ca, str(ca))
        self._client_ca = None if not client_ca else read_authority(client_ca, names.client_ca)

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self._certificate is not None

    @property
    def names_nodes(self) -> bool:
        """Whether nodes must show a certificate that names them."""
        return self._client_ca is not None

    @property
    def ca(self) -> str:
        """The authority that nodes must trust, as PEM; "" for gRPC's default authorities."""
        return "" if self._ca is None else self._ca.decode("ascii", "replace")

    def credentials(self) -> grpc.ServerCredentials | None:
        """Return the gRPC server credentials; None for plaintext."""
        if self._certificate is None:
            return None
        return grpc.ssl_server_credentials(
            [(self._key, self._certificate)],
            root_certificates=self._client_ca,
            require_client_auth=self._client_ca is not None,
        )

    def warn_if_private(self) -> None:
        """Log if nodes are sent no authority, and are not known to trust the certificate's."""
        if self._certificate is not None and self._ca is None:
            warn_if_private(self._certificate, LINK.ca)

    def check_names(self) -> None:
        """Check that the certificate is made for the host that nodes dial.

        Raises
        ------
        LinkError
            If it is not.
        """
        if self._certificate is None:
            return
        host, names = self._dialled_host, names_of(self._certificate)
        if not any(_matches(host, name) for name in names):
            raise LinkError(
                f"nodes would dial {host}, but the link's certificate is made for "
                f"{', '.join(names) or 'no name'}; set advertise= of StreamLink (in the "
                "apps link-advertise) to one of these"
            )

    def dialled(self, port: int) -> str:
        """Return the address that nodes dial, given the port that the server listens on."""
        public = None if self._advertise is None else self._advertise[1]
        return join_address(self._dialled_host, public or port)

    @property
    def _dialled_host(self) -> str:
        host = self.host if self._advertise is None else self._advertise[0]
        return own_address() if is_unspecified(host) else host


def split_address(text: str, key: str) -> tuple[str, int | None]:
    """Split "host:port", "[IPv6]:port" or a host alone.

    Raises
    ------
    LinkError
        If it is none of these, or the port is not in 0..65535; the message names `key`. A "%" is
        refused: what follows it is a zone for some, and for gRPC, which dials, an escape.
    """
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        port = rest.removeprefix(":") if rest.startswith(":") else None
        wrong = not closed or (rest and port is None) or ":" not in host
    elif text.count(":") > 1:
        host, port, wrong = text, None, not _is_ip(text)
    else:
        host, colon, after = text.partition(":")
        port, wrong = after if colon else None, False
    if wrong or not host or any(c.isspace() or c in "/,@%" for c in host):
        raise LinkError(f"{key} is {text!r}; it must be host:port, with IPv6 as [::1]:9443")
    if port is None:
        return host, None
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise LinkError(f"{key} is {text!r}; a port is a number in 0..65535")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Join host and port, with IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host."""
    if _is_ip(host):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def is_unspecified(host: str) -> bool:
    """Return whether the host stands for every address of this machine."""
    return _is_ip(host) and ipaddress.ip_address(host).is_unspecified


def own_address() -> str:
    """Return this machine's IPv4 address towards others, else 127.0.0.1; nothing is sent."""
    # A documentation address (RFC 5737): only the routing table is consulted.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _matches(host: str, name: str) -> bool:
    if name.startswith("*.") and not _is_ip(host):
        return host.partition(".")[2].lower() == name[2:].lower()
    return host.lower() == name.lower()


def why_not_bound(address: str) -> str:
    """Return why an address cannot be bound, which gRPC does not report, and the remedy."""
    host, port = split_address(address, "address")
    family, every = (socket.AF_INET6, "[::]") if ":" in host else (socket.AF_INET, "0.0.0.0")
    try:
        socket.getaddrinfo(host, port, family)
        with socket.create_server((host, port or 0), family=family):
            return "gRPC could not bind it, though it is free now; try again"
    except socket.gaierror:
        return f"{host} is not a name that this machine can resolve; listen on {every}:{port}"
    except PermissionError:
        return f"port {port} needs more rights than this process has; choose one above 1023"
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {port} is taken; choose another, or end the process that has it"
        if error.errno == errno.EADDRNOTAVAIL:
            return (
                f"{host} is not an address of this machine; listen on {every}:{port}, and name the "
                "address that others dial as link-advertise (that of a mixer as link-via)"
            )
        return error.strerror or str(error)
