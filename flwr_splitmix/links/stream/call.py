"""What a line carries and what carries it: a call, a connection, and why there may be none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from flwr_splitmix.links.link import Outcome


class Connection(Protocol):
    """What a line needs of a connection; its methods are called from any thread."""

    def is_active(self) -> bool:
        """Return whether the connection still stands."""

    def wake(self) -> None:
        """Have it ask what is to be sent, and whether a reply may be read.

        Called under the line's lock, without delay.
        """

    def cancel(self) -> None:
        """End it."""


class LiveLineError(Exception):
    """Another connection holds the line, and it stands."""


class ClosedLineError(Exception):
    """The client takes no part in the round any more; the sentence says why."""


@dataclass
class Call:
    """A call, and what became of it.

    Parameters
    ----------
    began
        When it was submitted (`time.monotonic`).
    longest_reply
        Most bytes of tensors that its reply may have.
    outcome
        None while it is in flight.
    """

    number: int
    method: str
    payload: Mapping[str, Any]
    began: float
    longest_reply: int
    frame: list[bytes] | None = None
    outcome: Outcome | None = None
