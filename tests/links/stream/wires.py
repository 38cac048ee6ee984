"""Connections that are cut by hand, and the frames of a node, for tests of a line."""

from __future__ import annotations

from typing import Any

from flwr_splitmix.links.frames.codec import Frame, decode, encode
from flwr_splitmix.links.stream.line import Line


class Wire:
    """A connection that is cut by hand."""

    def __init__(self) -> None:
        self.standing = True
        self.woken = 0

    def is_active(self) -> bool:
        return self.standing

    def wake(self) -> None:
        self.woken += 1

    def cancel(self) -> None:
        self.standing = False


def hello(number: int = 0) -> bytes:
    return encode(Frame("hello", number, payload={"num-examples": 3}))


def reply(number: int, **payload: Any) -> bytes:
    return encode(Frame("reply", number, payload=payload))


def attached(line: Line, number: int = 0) -> Wire:
    wire = Wire()
    line.connect(wire)
    line.hello(wire, hello(number))
    return wire


def sent(line: Line, wire: Wire) -> Frame:
    outgoing = line.next_frame(wire)
    assert outgoing is not None
    return decode(outgoing[0])
