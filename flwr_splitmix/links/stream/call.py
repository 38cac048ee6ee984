"""Calls and connections of a line, and the errors of connecting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flwr_splitmix.links.frames.codec import Frame
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

    def wrong_with(self, frame: Frame, *, exact: bool) -> str | None:
        """Return why a frame from the client is no answer to this call, the oldest in flight.

        Parameters
        ----------
        exact
            Whether its tensors must be in their own formats.
        """
        if frame.kind not in ("reply", "error"):
            return f"sent a {frame.kind} frame in the midst of a round"
        if frame.number != self.number:
            return f"answered call {frame.number} where call {self.number} was due"
        if exact and frame.narrowed:
            return (
                "sent rounded numbers, of which a sum can be taken apart; the run's wire-dtype "
                "must be 'keep'"
            )
        return None
