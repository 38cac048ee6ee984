"""The protocol that both ends of the stream agree on: names, versions, limits and pings."""

from __future__ import annotations

from collections.abc import Iterator

from flwr_splitmix.links.frames.codec import (
    MAX_BODY,
    PREFIX,
    Frame,
    encode_in_messages,
    read_prefix,
)
from flwr_splitmix.links.frames.payload import CodecError
from flwr_splitmix.links.frames.wire import WireDtype

METHOD = "/flwr_splitmix.Link/Attach"
PROTOCOL = 3

TOKEN_KEY = "splitmix-token"
NODE_KEY = "splitmix-node"
PROTOCOL_KEY = "splitmix-protocol"


PIECE = 4 << 20
"""Bytes of the longest gRPC message. A longer frame travels in pieces: gRPC's limit holds for all
messages of a server, so it must be small for a peer that has not yet said what it will send."""

MAX_UNHEARD = 256
"""Most calls that a server may make behind the last one whose reply it says to have."""

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


def in_pieces(
    frame: Frame, wire: WireDtype = "keep", max_body: int = MAX_BODY, seed: int = 0
) -> list[bytes]:
    """Return a frame as messages of at most `PIECE` bytes; `seed` as for `encode`.

    Raises
    ------
    CodecError
        As `encode`.
    """
    return encode_in_messages(frame, PIECE, wire, max_body, seed)


class Messages:
    """The messages of a frame, as far as they have come.

    Every message but a frame's last has `PIECE` bytes: many short ones would take far more memory
    than the bytes they hold.

    Parameters
    ----------
    max_body
        Most bytes that the frame's body may have.

    Attributes
    ----------
    pieces
        The messages. Where one has not the length that it must have, or the first begins no frame
        whose body is short enough, those up to it; `decode` says what is wrong.
    """

    def __init__(self, max_body: int) -> None:
        self.pieces: list[bytes] = []
        self._max_body = max_body
        self._missing = 0

    def add(self, message: bytes) -> bool:
        """Take the next message; returns whether it is the last that is to be read."""
        if not self.pieces:
            self.pieces.append(message)
            try:
                self._missing = PREFIX.size + sum(read_prefix(message, self._max_body))
            except CodecError:
                return True
        else:
            self.pieces.append(message)
        if len(message) != min(PIECE, self._missing):
            return True
        self._missing -= len(message)
        return not self._missing


def next_frame(messages: Iterator[bytes], max_body: int) -> list[bytes]:
    """Read messages until a frame is whole; no more of them than its prefix may announce.

    Returns
    -------
    The `pieces` of `Messages`.

    Raises
    ------
    StopIteration
        If the messages end before.
    """
    frame = Messages(max_body)
    while not frame.add(next(messages)):
        pass
    return frame.pieces


def keepalive() -> list[tuple[str, int]]:
    """Return the settings by which either end notices that the other is frozen or gone."""
    return [
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 15_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]
