"""A TLS handshake of our own: gRPC does not report whether a certificate is missing."""

from __future__ import annotations

import socket
import ssl

from flwr_splitmix.links.stream.endpoint import split_address


def asks_for_certificate(address: str, seconds: float = 2.0) -> bool:
    """Return whether the server at an address hangs up on a client without a certificate.

    In TLS 1.3 the handshake is over before the server checks the client's certificate. gRPC's
    then closes the connection without a reason, and otherwise speaks first.

    Parameters
    ----------
    seconds
        Longest wait for it.

    Returns
    -------
    False if it speaks, or if no handshake comes about.
    """
    # Nothing is sent and nothing believed, so any server may answer.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, port = split_address(address, "link-via")
    try:
        with (
            socket.create_connection((host, port or 0), seconds) as plain,
            context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            return not encrypted.recv(1)
    except OSError:
        return False
