"""A client's batch in flight, whole or in parts: sent, and still waiting for its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.mixers import Share

MAX_PARTS = 64
"""Maximum number of parts of a batch."""

WireShares = Sequence[Mapping[str, Any] | None]
"""A share of each pass, as plain values."""


class StepBatch(NamedTuple):
    """A step's examples, or those of one of its parts.

    Parameters
    ----------
    inputs
        (b, ...).
    labels
        int64 (b,), or (b, L).
    ids
        The examples' ids, int64 (b,).
    """

    inputs: Tensor
    labels: Tensor
    ids: Tensor


@dataclass
class Pending:
    """The graph of a whole batch in flight, and its inputs if an error may tell of them."""

    anchors: list[Tensor | None]
    progress: float
    inputs: Tensor | None


class PartedBatch:
    """One step's batch, sent in equal parts, in order, each sample once.

    Parameters
    ----------
    number, progress
        The step's number and progress, as given by the server.
    plan, shares
        The client's share of each pass, for the whole batch.
    batch
        The whole batch.
    parts
        The number M of parts.
    tells
        Whether an error may tell of the data.

    Attributes
    ----------
    admitted
        Whether the batch may be sent; None until the guard has been asked.
    learned
        Whether a gradient of any part has been accumulated.
    inputs
        Those of the whole batch, if an error may tell of them; else None.

    Raises
    ------
    ClientError
        If the batch cannot be cut into so many equal parts.
    """

    def __init__(
        self,
        number: int,
        progress: float,
        plan: WireShares,
        shares: Sequence[Share | None],
        batch: StepBatch,
        parts: int,
        *,
        tells: bool,
    ) -> None:
        samples = len(batch.labels)
        if type(parts) is not int or not 1 <= parts <= MAX_PARTS or samples % parts:
            raise ClientError(
                f"the server cuts a batch of {samples} into {str(parts)[:20]} parts; allowed are "
                f"divisors of the batch up to {MAX_PARTS} (micro-batches)"
            )
        self.number = number
        self.progress = progress
        self.parts = parts
        self.admitted: bool | None = None
        self.learned = False
        self.inputs = batch.inputs if tells else None
        self._plan = plan
        self._shares = shares
        self._batch = batch
        self._samples = samples // parts
        self._sent = 0
        self._delivered = 0
        self._anchors: list[Sequence[Tensor | None]] = []

    def next_part(
        self, number: int, part: int, parts: int, plan: WireShares
    ) -> tuple[Sequence[Share | None], StepBatch]:
        """Return the next part: its share of each pass, and its examples.

        Raises
        ------
        ClientError
            If the server asks for another part: a sample sent twice costs its privacy twice.
        """
        asked, wanted = (number, part, parts), (self.number, self._sent, self.parts)
        if asked != wanted or plan != self._plan or self._sent == self.parts:
            raise ClientError("the server asks for a part of a batch out of turn, or otherwise")
        first = self._sent * self._samples
        self._sent += 1
        shares = [None if share is None else share.part(first) for share in self._shares]
        return shares, StepBatch(*(t[first : first + self._samples] for t in self._batch))

    def keep(self, anchors: Sequence[Tensor | None]) -> None:
        """Keep the graph of the latest part: its anchor of each pass."""
        self._anchors.append(anchors)

    def anchors(self, number: int, part: int) -> Sequence[Tensor | None]:
        """Return and forget the anchors of the part whose gradient is delivered.

        Raises
        ------
        ClientError
            If it is not the next part, or has not been encoded.
        """
        if (number, part) != (self.number, self._delivered) or part >= len(self._anchors):
            raise ClientError("the server sends the gradient of a part of a batch out of turn")
        self._delivered += 1
        own, self._anchors[part] = self._anchors[part], ()
        return own

    @property
    def complete(self) -> bool:
        """Whether the gradients of all parts have been delivered."""
        return self._delivered == self.parts
