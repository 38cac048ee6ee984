"""The protocol of the stream: names, versions, limits and keepalive settings."""

from __future__ import annotations

from collections.abc import Iterator

from flwr_splitmix.links.frames.codec import (
    MAX_BODY,
    MAX_HEADER,
    PREFIX,
    Frame,
    encode_in_messages,
    read_prefix,
)
from flwr_splitmix.links.frames.payload import CodecError
from flwr_splitmix.links.frames.wire import WireDtype

METHOD = "/flwr_splitmix.Link/Attach"
PROTOCOL = 5

TOKEN_KEY = "splitmix-token"
NODE_KEY = "splitmix-node"
PROTOCOL_KEY = "splitmix-protocol"


PIECE_BYTES = 4 << 20
"""Bytes of the longest gRPC message. A longer frame is sent in pieces: gRPC's limit applies to all
messages of a server, so it must be small for peers that have not yet announced what they send."""

MAX_UNHEARD = 256
"""Most calls that a server may make beyond the last one whose reply it has acknowledged."""

HELLO_BODY, HELLO_HEADER = 64 << 10, 16 << 10
"""Largest body and header in bytes of a hello frame, which holds some twenty plain values."""

REPLY_HEADER = 64 << 10
"""Largest header in bytes of a reply, which holds a few plain values and some fifty bytes for each
tensor; to decode nested values takes longer than tensors of many times their bytes."""

PING_SECONDS = 10
"""Seconds between two pings, so that either end notices that the other is gone."""

UNCONFIRMED_SECONDS, UNANSWERED_SECONDS = 15, 30
"""How long a connection stands whose other machine confirms no bytes, and one whose other process
does not answer a ping. The answer waits behind the data that are being sent: 15 s were too few for
frames of 6 MB on a line of 1 Mbit/s, and 30 s as good as gRPC's own minute."""

NOTICE_SECONDS = PING_SECONDS + UNANSWERED_SECONDS + 5
"""Seconds after which a server must have noticed that a node's connection is broken."""


def message_settings() -> list[tuple[str, int]]:
    """Return the gRPC settings that refuse long and compressed messages before they are read.

    A compressed message does not announce its decompressed length.
    """
    return [
        ("grpc.max_send_message_length", PIECE_BYTES),
        ("grpc.max_receive_message_length", PIECE_BYTES),
        # One bit per algorithm; the first means no compression.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.per_message_decompression", 0),
    ]


def in_pieces(
    frame: Frame,
    wire: WireDtype = "keep",
    max_body: int = MAX_BODY,
    seed: int = 0,
    max_header: int = MAX_HEADER,
) -> list[bytes]:
    """Return a frame as messages of at most `PIECE_BYTES` bytes; the rest as for `encode`.

    Raises
    ------
    CodecError
        As `encode`.
    """
    return encode_in_messages(frame, PIECE_BYTES, wire, max_body, seed, max_header)


class PartialFrame:
    """The messages of a frame received so far.

    Every message but a frame's last has `PIECE_BYTES` bytes: many short ones would take far more
    memory than the bytes they hold.

    Parameters
    ----------
    max_body, max_header
        Largest body and header of the frame in bytes.

    Attributes
    ----------
    pieces
        The messages. They end early at a message of the wrong length, or at a first message whose
        prefix is invalid or announces too much; `decode` then reports the error.
    header
        Bytes of the header; 0 while the prefix is missing or invalid.
    """

    def __init__(self, max_body: int, max_header: int = MAX_HEADER) -> None:
        self.pieces: list[bytes] = []
        self.header = 0
        self._limits = max_body, max_header
        self._missing = 0

    def add(self, message: bytes) -> bool:
        """Add the next message; return whether it is the last one to read."""
        if not self.pieces:
            self.pieces.append(message)
            try:
                self.header, body = read_prefix(message, *self._limits)
                self._missing = PREFIX.size + self.header + body
            except CodecError:
                return True
        else:
            self.pieces.append(message)
        if len(message) != min(PIECE_BYTES, self._missing):
            return True
        self._missing -= len(message)
        return not self._missing


def next_frame(messages: Iterator[bytes], max_body: int) -> list[bytes]:
    """Read messages until a frame is complete, and no more than its prefix announces.

    Returns
    -------
    The `pieces` of `PartialFrame`.

    Raises
    ------
    StopIteration
        If the messages end first.
    """
    frame = PartialFrame(max_body)
    while not frame.add(next(messages)):
        pass
    return frame.pieces


def keepalive() -> list[tuple[str, int]]:
    """Return the gRPC settings by which either end notices that the other is frozen or gone."""
    return [
        ("grpc.keepalive_time_ms", 1000 * PING_SECONDS),
        # gRPC makes this the kernel's TCP_USER_TIMEOUT, where there is one, and no more of it.
        ("grpc.keepalive_timeout_ms", 1000 * UNCONFIRMED_SECONDS),
        # A minute by default; versions of gRPC that do not know it ignore it.
        ("grpc.http2.ping_timeout_ms", 1000 * UNANSWERED_SECONDS),
        ("grpc.http2.max_pings_without_data", 0),
    ]
