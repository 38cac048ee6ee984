"""Calls and connections of a line, and the errors of connecting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flwr_splitmix.links.link import Outcome


class Connection(Protocol):
    """The connection interface that a line needs; methods may be called from any thread."""

    def is_active(self) -> bool:
        """Return whether the connection is still open."""

    def wake(self) -> None:
        """Make the connection ask the line what to send, and whether to read a reply.

        Called under the line's lock; must not block.
        """

    def cancel(self) -> None:
        """End the connection."""


class LiveLineError(Exception):
    """Another connection holds the line and is still open."""


class ClosedLineError(Exception):
    """The client no longer takes part in the round; the message states why."""


@dataclass
class Call:
    """A call and its outcome.

    Parameters
    ----------
    began
        When it was submitted (`time.monotonic`).
    longest_reply
        Most bytes of tensors in its reply.
    frame
        The encoded messages; None before encoding and after the answer.
    outcome
        None while the call is in flight.
    """

    number: int
    method: str
    payload: Mapping[str, Any]
    began: float
    longest_reply: int
    frame: list[bytes] | None = None
    outcome: Outcome | None = None
