"""Frames, the messages of the stream: no pickle, a closed schema, every length checked first.

A frame is a fixed prefix (magic, version, zero, bytes of header, bytes of body), a JSON header and
a body in the safetensors format. The header holds the frame's kind, call number, text and payload:
nested plain values in which every tensor is replaced by its position in the body.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from flwr_splitmix.files.json_values import refuse_half_characters
from flwr_splitmix.links.frames.body import BodyError, read_body, write_body
from flwr_splitmix.links.frames.payload import Assembler, CodecError, take_apart
from flwr_splitmix.links.frames.wire import STOCHASTIC, WireDtype
from flwr_splitmix.seeding import derive_seed

MAGIC = b"SMXF"
VERSION = 1
PREFIX = struct.Struct("<4sHHQQ")

MAX_HEADER = 1 << 20
MAX_BODY = 1 << 30
Kind = Literal["hello", "call", "reply", "error", "finish", "leave", "state"]
_KINDS = frozenset(get_args(Kind))


@dataclass(frozen=True)
class Frame:
    """One frame.

    Parameters
    ----------
    kind
        Kind of frame; see `flwr_splitmix.links.stream.line` for the sender of each.
    number
        Number of the call that the frame belongs to.
    text
        The exchange's name in a call, a sentence in an error.
    payload
        Plain values and tensors.
    body_bytes, header_bytes
        Of a decoded frame: bytes of its tensors on the wire, and of everything else.
    narrowed
        Of a decoded frame: whether a tensor came in a narrower format than its own.
    """

    kind: Kind
    number: int = 0
    text: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    body_bytes: int = 0
    header_bytes: int = 0
    narrowed: bool = False


def encode(
    frame: Frame, wire: WireDtype = "keep", max_body: int = MAX_BODY, seed: int = 0
) -> bytes:
    """Return a frame as bytes.

    Parameters
    ----------
    wire
        Format of floating-point tensors.
    max_body
        Largest body in bytes.
    seed
        Seed of stochastic rounding; the random numbers also depend on the frame's number.

    Raises
    ------
    CodecError
        If the payload contains something that cannot be sent, or is larger than the limits.
    """
    return b"".join(_encoded(frame, wire, max_body, seed))


def encode_in_messages(
    frame: Frame,
    longest: int,
    wire: WireDtype = "keep",
    max_body: int = MAX_BODY,
    seed: int = 0,
    max_header: int = MAX_HEADER,
) -> list[bytes]:
    """Return a frame split into messages of at most `longest` bytes; tensors are copied once.

    Raises
    ------
    CodecError
        As `encode`.
    """
    return _cut(_encoded(frame, wire, max_body, seed, max_header), longest)


def _encoded(
    frame: Frame, wire: WireDtype, max_body: int, seed: int, max_header: int = MAX_HEADER
) -> list[bytes | memoryview]:
    """Return a frame in pieces, some of which are views of the tensors' memory."""
    tensors: list[Tensor] = []
    draws = None
    if wire.endswith(STOCHASTIC):
        draws = torch.Generator().manual_seed(derive_seed(seed, "rounding", frame.number))
    header = {
        "kind": frame.kind,
        "number": frame.number,
        "text": frame.text,
        "payload": take_apart(frame.payload, wire, tensors, draws),
    }
    try:
        pieces = write_body(tensors)
    except BodyError as error:
        raise CodecError(str(error)) from None
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    body = sum(len(piece) for piece in pieces)
    _check_lengths(len(head), body, max_body, max_header)
    return [PREFIX.pack(MAGIC, VERSION, 0, len(head), body), head, *pieces]


def _cut(pieces: Iterable[bytes | memoryview], longest: int) -> list[bytes]:
    messages: list[bytes] = []
    begun: list[memoryview] = []
    room = longest
    for whole in pieces:
        piece = memoryview(whole)
        while len(piece) > room:
            messages.append(b"".join([*begun, piece[:room]]))
            piece, begun, room = piece[room:], [], longest
        begun.append(piece)
        room -= len(piece)
    return [*messages, b"".join(begun)]


def decode(
    data: bytes | Sequence[bytes], max_body: int = MAX_BODY, max_header: int = MAX_HEADER
) -> Frame:
    """Decode a frame, given whole or in the messages that it was split into.

    Raises
    ------
    CodecError
        If the bytes are not a frame of this version, or its tensors or its header are longer than
        allowed. Nothing is allocated for a frame before its lengths have been checked.
    """
    first, *rest = [data] if isinstance(data, bytes) else data
    header_bytes, body_bytes = read_prefix(first, max_body, max_header)
    length, start = len(first) + sum(map(len, rest)), PREFIX.size + header_bytes
    if length != start + body_bytes:
        raise CodecError(f"a frame of {length} bytes announces {start + body_bytes}")
    if len(first) < start:
        first, rest = b"".join([first, *rest]), []
    header = _read_header(first[PREFIX.size : start])
    try:
        tensors = read_body(b"".join([memoryview(first)[start:], *rest]))
    except BodyError as error:
        raise CodecError(str(error)) from None
    assembler = Assembler(tensors, max_body)
    payload = assembler.payload(header["payload"])
    body = sum(tensor.nbytes for tensor in tensors)
    return Frame(
        header["kind"],
        header["number"],
        header["text"],
        payload,
        body,
        length - body,
        assembler.narrowed,
    )


def read_prefix(
    data: bytes, max_body: int = MAX_BODY, max_header: int = MAX_HEADER
) -> tuple[int, int]:
    """Check a frame's prefix and return (bytes of the header, bytes of the body).

    Raises
    ------
    CodecError
        If it is too short, has another magic or version, or announces more than the limits.
    """
    if len(data) < PREFIX.size:
        raise CodecError(f"a frame has at least {PREFIX.size} bytes, this one has {len(data)}")
    magic, version, zero, header, body = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise CodecError("these bytes are not a frame of flwr-splitmix")
    if version != VERSION or zero:
        raise CodecError(f"the frame has version {version}; expected {VERSION}")
    _check_lengths(header, body, max_body, max_header)
    return header, body


def _check_lengths(header: int, body: int, max_body: int, max_header: int = MAX_HEADER) -> None:
    if header > max_header:
        raise CodecError(f"a frame's header has {header} bytes, at most {max_header} are allowed")
    if body > max_body:
        raise CodecError(f"a frame's body has {body} bytes, at most {max_body} are allowed")


def _read_header(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()  # json would also take other encodings
        header = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise CodecError("a frame's header is not JSON") from None
    if not isinstance(header, dict) or header.keys() != {"kind", "number", "text", "payload"}:
        raise CodecError("a frame's header must hold kind, number, text and payload")
    if not isinstance(header["kind"], str) or header["kind"] not in _KINDS:
        raise CodecError(f"a frame's kind must be one of {', '.join(sorted(_KINDS))}")
    number = header["number"]
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 53:
        raise CodecError("a frame's number must be an integer from 0")
    if not isinstance(header["text"], str):
        raise CodecError("a frame's text must be a string")
    try:  # the text itself is escaped where it is shown
        refuse_half_characters(text, header["payload"])
    except ValueError:
        raise CodecError("a frame's payload holds half a character") from None
    return header


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)
