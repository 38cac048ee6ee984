"""Passes of the L shape's lower segment, and its exchanges for a batch in parts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from flwr_splitmix.clients.client import ClientError, exchange
from flwr_splitmix.clients.guards.guarded_client import GuardedClient
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.clients.split.graphs import upload
from flwr_splitmix.clients.split.lower_end import LowerEnd
from flwr_splitmix.clients.split.parts import PartedBatch, StepBatch, WireShares
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.mixers import Share
from flwr_splitmix.optimizers import ScheduledOptimizer


class PartedExchanges(GuardedClient):
    """The part of an L-shaped client that runs its lower segment, for a batch in parts, too.

    A batch in parts (`micro-batches`) is sent while the server processes others of them. A subclass
    draws batches.

    Parameters
    ----------
    lower
        The lower segment with its optimizer.
    batches, privacy, repeatable_secrets
        See `GuardedClient`.

    Attributes
    ----------
    steps
        Steps taken in this round.
    """

    def __init__(
        self,
        lower: LowerEnd,
        batches: Batches,
        *,
        privacy: PrivacyBudget | None,
        repeatable_secrets: bool,
    ) -> None:
        self.lower, self.device = lower, lower.device
        super().__init__(batches, privacy=privacy, repeatable_secrets=repeatable_secrets)
        self.steps = 0
        self._parted: PartedBatch | None = None  # the batch in flight

    @property
    def segment(self) -> nn.Module:
        """The lower segment; another one may take its place between rounds."""
        return self.lower.segment

    @segment.setter
    def segment(self, segment: nn.Module) -> None:
        self.lower.segment = segment

    @property
    def optimizer(self) -> ScheduledOptimizer:
        """The lower segment's optimizer with its schedule."""
        return self.lower.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: ScheduledOptimizer) -> None:
        self.lower.optimizer = optimizer

    @abstractmethod
    def _asked(self, number: int, plan: WireShares) -> tuple[Sequence[Share | None], StepBatch]:
        """Return a step's shares and its whole batch: inputs, labels and ids."""

    def _smashed(self, inputs: Tensor, shares: Sequence[Share | None]) -> Tensor:
        """Run the lower segment in training mode and keep its graph."""
        return self.lower.smashed(inputs, tells=self.may_name_data(shares))

    def _backward(
        self, anchors: Sequence[Tensor | None], gradients: Sequence[Tensor | None], *, anew: bool
    ) -> bool:
        return self.lower.backward(anchors, gradients, anew=anew, bounded=self._limited)

    def _take_step(self, progress: float, inputs: Tensor | None, *, last: bool = False) -> None:
        self.lower.step(progress, self.order.num_rounds, inputs, last=last)
        self.steps += 1

    @exchange
    def encode_part(
        self, *, number: int, progress: float, plan: WireShares, part: int, parts: int
    ) -> dict[str, Any]:
        """Run the forward pass of one part of a step's batch, while the server processes others.

        The first part begins the step: the whole batch is drawn and charged. The other parts
        follow in order, each once.

        Parameters
        ----------
        number, progress, plan
            As for `step`; the plan is that of the whole batch, the same for all parts.
        part, parts
            Index of the part, from 0, and the number of parts, which divides the batch size.

        Returns
        -------
        As `step`, for the part's samples; {"budget-spent": True} for every part of a batch that
        would exceed the client's privacy budget.
        """
        batch = self._parted
        if part == 0:
            if parts != 1 and (layer := self._whole_batch):
                raise ClientError(
                    f"this client's lower segment has {layer}, which needs a whole batch: set "
                    f"micro-batches to 1, or take a model without {layer} before the cut"
                )
            self._parted = None
            asked, whole = self._asked(number, plan)
            tells = self.may_name_data(asked)
            batch = PartedBatch(number, progress, plan, asked, whole, parts, tells=tells)
        if batch is None:
            raise ClientError("the server asks for a part of a batch that has not begun")
        shares, (inputs, labels, ids) = batch.next_part(number, part, parts, plan)
        if batch.admitted is False:
            return {"budget-spent": True}
        smashed = self._smashed(inputs, shares)
        if batch.admitted is None:
            batch.admitted = self._admits(shares, smashed)
            self._parted = batch
            if not batch.admitted:
                return {"budget-spent": True}
        reply, anchors = upload(shares, smashed, labels, ids)
        batch.keep(anchors)
        return reply

    @exchange
    def learn_part(
        self, *, number: int, part: int, gradient: Sequence[Tensor | None] | None
    ) -> dict[str, Any]:
        """Run the backward pass of one part; after the last part, take the optimizer step.

        Parameters
        ----------
        number, part
            Identify a part made by `encode_part`; gradients of all parts are delivered in order.
        gradient
            The part's cut-layer gradient of each pass; None if there is none.

        Returns
        -------
        {}
        """
        batch = self._parted
        if batch is None:
            raise ClientError("the server sends the gradient of a batch that has not begun")
        anchors = batch.anchors(number, part)
        if gradient is not None and self._backward(anchors, gradient, anew=not batch.learned):
            batch.learned = True
        if batch.complete:
            self._parted = None
            if batch.learned:
                self._take_step(batch.progress, batch.inputs)
        return {}
