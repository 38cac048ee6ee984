"""The protocol that both ends of the stream agree on: names, versions, limits and pings."""

from __future__ import annotations

from collections.abc import Iterator

from flwr_splitmix.links.frames.codec import PREFIX, read_prefix
from flwr_splitmix.links.frames.payload import CodecError

METHOD = "/flwr_splitmix.Link/Attach"
PROTOCOL = 2

TOKEN_KEY = "splitmix-token"
NODE_KEY = "splitmix-node"
PROTOCOL_KEY = "splitmix-protocol"


PIECE = 4 << 20
"""Bytes of the longest gRPC message. A longer frame travels in pieces: gRPC's limit holds for all
messages of a server, so it must be small for a peer that has not yet said what it will send."""

HELLO_BODY = 64 << 10
"""Most bytes of tensors in a hello, which holds plain values."""


def message_settings() -> list[tuple[str, int]]:
    """Return gRPC's settings that refuse a message before it is read.

    By its announced length, and if it is compressed: what it would become is not in its length.
    """
    return [
        ("grpc.max_send_message_length", PIECE),
        ("grpc.max_receive_message_length", PIECE),
        # A bit for each algorithm; the first is none.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.per_message_decompression", 0),
    ]


def in_pieces(frame: bytes) -> Iterator[bytes]:
    """Cut a frame into messages; a frame that is short enough is its only piece, uncopied."""
    if len(frame) <= PIECE:
        yield frame
    else:
        for start in range(0, len(frame), PIECE):
            yield frame[start : start + PIECE]


def next_frame(messages: Iterator[bytes], max_body: int) -> bytes:
    """Read messages until a frame is whole; no more of them than its prefix may announce.

    Returns
    -------
    The frame; or the first message, if it begins no frame whose body has at most `max_body` bytes.
    `decode` says what is wrong with it.

    Raises
    ------
    StopIteration
        If the messages end before.
    """
    first = next(messages)
    try:
        missing = PREFIX.size + sum(read_prefix(first, max_body)) - len(first)
    except CodecError:
        return first
    if missing <= 0:
        return first
    pieces = [first]
    while missing > 0:
        pieces.append(next(messages))
        if not pieces[-1]:
            break
        missing -= len(pieces[-1])
    return b"".join(pieces)


def keepalive() -> list[tuple[str, int]]:
    """Return the settings by which either end notices that the other is frozen or gone."""
    return [
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 15_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
