"""gRPC by hand, for peers that follow no library's rules, and to parse recorded network traffic."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from flwr_splitmix.links.stream.protocol import METHOD

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
PADDED = 8


def http2_frame(kind: int, flags: int, payload: bytes, stream: int = 1) -> bytes:
    """Write one frame (RFC 9113, 4.1)."""
    head = struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream)
    return head + payload


def http2_request(metadata: dict[str, str]) -> bytes:
    """Open a gRPC stream by hand: preface, settings, headers without compression."""
    headers = {
        ":method": "POST", ":scheme": "http", ":path": METHOD, ":authority": "x",
        "te": "trailers", "content-type": "application/grpc", **metadata,
    }  # fmt: skip
    block = b"".join(b"\0" + hpack(name) + hpack(value) for name, value in headers.items())
    return PREFACE + http2_frame(SETTINGS, 0, b"", 0) + http2_frame(HEADERS, 4, block)


def message_head(length: int, begun: bytes) -> bytes:
    """Announce a gRPC message of `length` bytes, and send the first of them."""
    return http2_frame(DATA, 0, b"\0" + struct.pack(">I", length) + begun)


def hpack(text: str) -> bytes:
    """Write a string as HPACK does without Huffman coding (RFC 7541, 5.1 and 5.2)."""
    length, out = len(text), b""
    if length < 127:
        return bytes([length]) + text.encode()
    out, length = bytes([127]), length - 127
    while length >= 128:
        out, length = out + bytes([length % 128 + 128]), length // 128
    return out + bytes([length]) + text.encode()


def grpc_messages(stream: bytes) -> Iterator[bytes]:
    """Parse one direction of an HTTP/2 connection (RFC 9113, 4.1 and 6.1; gRPC's framing)."""
    stream = stream.removeprefix(PREFACE)
    data = b""
    while stream:
        length, kind, flags = int.from_bytes(stream[:3], "big"), stream[3], stream[4]
        payload, stream = stream[9 : 9 + length], stream[9 + length :]
        if kind == DATA:
            data += payload[1 : len(payload) - payload[0]] if flags & PADDED else payload
    while data:
        compressed, length = struct.unpack(">BI", data[:5])
        assert not compressed
        yield data[5 : 5 + length]
        data = data[5 + length :]
