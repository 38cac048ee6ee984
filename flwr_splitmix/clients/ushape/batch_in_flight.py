"""A U-shaped client's batch in flight: sent, then scored, then waiting for its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.finite import check_loss
from flwr_splitmix.clients.guards.restrained import restrained
from flwr_splitmix.clients.requests import check_received
from flwr_splitmix.clients.ushape.checked_methods import (
    checked_gradient,
    checked_loss,
    checked_perturbed,
    checked_returned,
    gradients_through,
    labels_explained,
)
from flwr_splitmix.clients.ushape.messenger import Messenger
from flwr_splitmix.hiding import SentBatch
from flwr_splitmix.segments.batch_norm import enough_values


class UShapeBatchInFlight:
    """One step's batch, from its messages to the optimizer step.

    Parameters
    ----------
    sent
        Its messages, and what the client needs to read the answer.
    messenger
        Made them.
    loss
        (hidden states (b, T, d), sent) to the mean loss, a scalar.
    progress
        Global progress in rounds, for the schedule.
    returns
        Whether the trunk gets gradients, and the head learns; else the tail alone learns.

    Attributes
    ----------
    decoded
        Whether the trunk's outputs have been scored.
    """

    def __init__(
        self,
        sent: SentBatch,
        messenger: Messenger,
        loss: Callable[[Tensor, SentBatch], Tensor],
        *,
        progress: float,
        returns: bool,
    ) -> None:
        self.sent = sent
        self.decoded = False
        self._messenger = messenger
        self._loss = loss
        self._progress = progress
        self._returns = returns
        self._local: list[tuple[Tensor, Tensor]] = []

    def decode(self, outputs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Score the trunk's outputs.

        Parameters
        ----------
        outputs
            (b, T, d) of each message.

        Returns
        -------
        The mean loss, a scalar, and the gradients to return, (b, T, d) for each message; none if
        only the tail learns.

        Raises
        ------
        ClientError
            If the outputs are not those of the messages, or were scored before, a method of a
            subclass returns something else than it must, or the loss is NaN or infinite and no
            epsilon is kept.
        """
        if self.decoded:
            raise ClientError("the server asks for the gradients of one batch twice")
        leaves = [
            output.detach().requires_grad_()
            for output in self._messenger.outputs_for(self.sent, outputs)
        ]
        recovered = self._messenger.recovered(leaves, self.sent)
        hidden = recovered.detach().requires_grad_()
        loss, gradient = self._loss_at(hidden)
        gradients: list[Tensor] = []
        if self._returns:
            gradients = self._returned(recovered, leaves, hidden, gradient)
            if self.sent.local is not None:
                self._local = [(self.sent.local, gradient)]
        self.decoded = True
        return loss, gradients

    def _loss_at(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss, and its gradient at the hidden states."""
        may_name_data, labels = self._messenger.may_name_data, self.sent.batch.labels
        with (
            restrained("loss fails on dtypes", hides=not may_name_data),
            enough_values("tail"),
            labels_explained(labels, hidden.dtype),
        ):
            # A copy, because the tail may overwrite its input, as an activation in place does.
            loss = checked_loss(self._loss(hidden.clone(), self.sent))
            loss.backward()  # type: ignore[no-untyped-call]
        gradient = checked_gradient(hidden.grad)
        if may_name_data:
            tail = self._messenger.ends.segments["tail"]
            check_loss(loss, gradient if self._returns else None, tail, labels)
        return loss, gradient

    def _returned(
        self, recovered: Tensor, leaves: Sequence[Tensor], hidden: Tensor, gradient: Tensor
    ) -> list[Tensor]:
        hiding = self._messenger.hiding
        perturbed = hiding.perturb(gradient, hidden.detach(), self.sent)
        gradients = gradients_through(recovered, leaves, checked_perturbed(perturbed, gradient))
        return checked_returned(hiding.returned(gradients, self.sent), gradients)

    def learn(self, gradient: Sequence[Tensor] | None, num_rounds: int) -> bool:
        """Run the backward pass through the head, and take an optimizer step.

        Parameters
        ----------
        gradient
            The trunk's at each message, (b, T, d); None if it did not arrive: then no step is
            taken, unless the tail alone learns.
        num_rounds
            The number of rounds, for the schedule.

        Returns
        -------
        Whether the optimizer has stepped: not on a batch that was not scored. Where an error may
        not reveal data, a step that was left out for its gradients counts, too.

        Raises
        ------
        ClientError
            If gradients are not finite, and an error may report it. Also raised by `Ends.backward`.
        """
        if not self.decoded or (self._returns and gradient is None):
            return False
        ends = self._messenger.ends
        if self._returns and gradient is not None:
            check_received("the server's gradient of message", gradient, bounded=True)
            local, penalty = self._local, self.sent.penalty
            if penalty is not None:
                local = [*local, (penalty, torch.ones_like(penalty))]
            ends.backward(
                [*self.sent.messages, *(tensor for tensor, _ in local)],
                [*gradient, *(each for _, each in local)],
            )
        self._messenger.hiding.before_update()
        inputs = self.sent.batch.inputs if self._messenger.may_name_data else None
        ends.step(self._progress, num_rounds, inputs)
        return True
