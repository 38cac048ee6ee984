"""A client's batch in flight, whole or in parts: sent, and still waiting for its gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.guards.upload_guard import UploadGuard
from flwr_splitmix.clients.split.graphs import backward, upload
from flwr_splitmix.clients.split.lower_end import LowerEnd
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


class BatchInFlight:
    """One step's batch, sent in equal parts, in order, each sample once; a whole one in one part.

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
    lower
        The lower end through which it goes.
    guard
        Admits it, or refuses it, when its first part is about to leave.
    may_name_data
        Whether errors may reveal data.

    Attributes
    ----------
    number
        As given.
    admitted
        Whether the batch may be sent; None until the guard has been asked.

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
        lower: LowerEnd,
        guard: UploadGuard,
        may_name_data: bool,
    ) -> None:
        samples = len(batch.labels)
        if type(parts) is not int or not 1 <= parts <= MAX_PARTS or samples % parts:
            raise ClientError(
                f"the server cuts a batch of {samples} into {str(parts)[:20]} parts; expected "
                f"divisors of the batch up to {MAX_PARTS} (micro-batches)"
            )
        self.number = number
        self.admitted: bool | None = None
        self._progress = progress
        self._plan = plan
        self._shares = shares
        self._parts = parts
        self._lower, self._guard = lower, guard
        self._inputs = batch.inputs if may_name_data else None
        self._learned = False  # whether a gradient of any part has been accumulated
        self._remaining: StepBatch | None = batch  # None: all of it is sent
        self._samples = samples // parts
        self._parts_sent = 0
        self._delivered = 0
        self._anchors: list[Sequence[Tensor | None]] = []

    def encode(self, number: int, part: int, parts: int, plan: WireShares) -> dict[str, Any]:
        """Run the forward pass of the next part, and return its upload.

        With the first part the whole batch is charged.

        Returns
        -------
        As `upload`; or {"budget-spent": True}, for every part of a batch that is not admitted.

        Raises
        ------
        ClientError
            If the server asks for another part: a sample sent twice costs its privacy twice. Also
            raised by `LowerEnd.smashed`, `UploadGuard.try_charge_batch` and `upload`.
        """
        shares, (inputs, labels, ids) = self._next_part(number, part, parts, plan)
        if self.admitted is False:
            return {"budget-spent": True}
        smashed = self._lower.smashed(
            inputs, may_name_data=self._inputs is not None, in_parts=not self.whole
        )
        if self.admitted is None:
            self.admitted = self._guard.try_charge_batch(shares, smashed)
            if not self.admitted:
                return {"budget-spent": True}
        reply, anchors = upload(shares, smashed, labels, ids)
        self._anchors.append(anchors)
        return reply

    def _next_part(
        self, number: int, part: int, parts: int, plan: WireShares
    ) -> tuple[Sequence[Share | None], StepBatch]:
        request, expected = (number, part, parts), (self.number, self._parts_sent, self._parts)
        batch = self._remaining
        if request != expected or plan != self._plan or batch is None:
            raise ClientError("the server asks for a part of a batch out of turn, or otherwise")
        first = self._parts_sent * self._samples
        self._parts_sent += 1
        if self._parts_sent == self._parts:
            self._remaining = None
        if self._parts == 1:
            return self._shares, batch
        shares = [None if share is None else share.part(first) for share in self._shares]
        return shares, StepBatch(*(t[first : first + self._samples] for t in batch))

    def learn(
        self,
        number: int,
        part: int,
        gradients: Sequence[Tensor | None] | None,
        num_rounds: int,
        *,
        last: bool,
    ) -> bool:
        """Run the backward pass of the next part; after the batch's last one, take a step.

        Parameters
        ----------
        gradients
            The part's, one per pass; None if there is none.
        num_rounds
            The number of rounds, for the schedule.
        last
            As for `LowerEnd.step`.

        Returns
        -------
        Whether the optimizer has stepped: not on a batch without any gradient.

        Raises
        ------
        ClientError
            If it is not the next part, or has not been encoded. Also raised by `backward` and
            `LowerEnd.step`.
        """
        if (number, part) != (self.number, self._delivered) or part >= len(self._anchors):
            raise ClientError("the server sends the gradient of a part of a batch out of turn")
        self._delivered += 1
        anchors, self._anchors[part] = self._anchors[part], ()
        if gradients is not None:
            optimizer, anew = self._lower.optimizer, not self._learned
            bounded = self._guard.bounded
            self._learned |= backward(anchors, gradients, optimizer, anew=anew, bounded=bounded)
        if not (self.complete and self._learned):
            return False
        self._lower.step(self._progress, num_rounds, self._inputs, last=last)
        return True

    @property
    def whole(self) -> bool:
        """Whether the batch is sent in one part."""
        return self._parts == 1

    @property
    def complete(self) -> bool:
        """Whether the gradients of all parts have been delivered."""
        return self._delivered == self._parts
