"""The channel of the end that dials: a node, or a run that uses a third party's mixer."""

from __future__ import annotations

import os

import grpc

from flwr_splitmix.links.stream.protocol import keepalive, message_settings

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Variables of the environment from which gRPC takes a proxy: the first that is set, even if to
nothing, which means none."""


def proxy_variable(*, tls: bool) -> str:
    """Return the name of the variable whose proxy `dial` takes; "" for none."""
    first = next((name for name in PROXIES if name in os.environ), "") if tls else ""
    return first if os.environ.get(first) else ""


def dial(
    address: str, *, tls: bool, ca: bytes | None, pair: tuple[bytes, bytes] | None
) -> grpc.Channel:
    """Return a channel that shares no connection with others, and leaves retries to its user.

    Without TLS it takes no proxy of the environment (`http_proxy`), which would read what it hands
    on; gRPC takes one even to the loopback.

    Parameters
    ----------
    ca
        Authority of the other end's certificate, PEM; empty or None for those that gRPC trusts.
    pair
        Own certificate and key, PEM; None shows none.
    """
    options = [
        *message_settings(),
        *keepalive(),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]
    if not tls:
        return grpc.insecure_channel(address, options=[*options, ("grpc.enable_http_proxy", 0)])
    certificate, key = pair or (None, None)
    credentials = grpc.ssl_channel_credentials(ca or None, key, certificate)
    return grpc.secure_channel(address, credentials, options=options)
