"""The protocol that both ends of the stream agree on: names, versions, limits and pings."""

from __future__ import annotations

from flwr_splitmix.links.frames.codec import MAX_HEADER, PREFIX

METHOD = "/flwr_splitmix.Link/Attach"
PROTOCOL = 1

TOKEN_KEY = "splitmix-token"
NODE_KEY = "splitmix-node"
PROTOCOL_KEY = "splitmix-protocol"


def message_limits(max_body: int) -> list[tuple[str, int]]:
    """Return gRPC's settings that refuse a message before it is read, by its announced length."""
    longest = max_body + MAX_HEADER + PREFIX.size
    return [
        ("grpc.max_send_message_length", longest),
        ("grpc.max_receive_message_length", longest),
    ]


def keepalive() -> list[tuple[str, int]]:
    """Return the settings by which either end notices that the other is frozen or gone."""
    return [
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 15_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
