"""The two exchanges of a training step in the U shape, and the graph that is kept between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.evaluation_sets import Tests
from flwr_splitmix.clients.exchanges import exchange
from flwr_splitmix.clients.finite import check_loss
from flwr_splitmix.clients.guards.restrained import restrained
from flwr_splitmix.clients.requests import check_received
from flwr_splitmix.clients.ushape.checked_methods import (
    checked_gradient,
    checked_hidden,
    checked_loss,
    checked_perturbed,
    checked_returned,
    gradients_through,
    labels_explained,
)
from flwr_splitmix.clients.ushape.ends import Ends
from flwr_splitmix.clients.ushape.graphless import GraphlessExchanges
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import Hiding, Sent
from flwr_splitmix.overriding import is_own
from flwr_splitmix.scoring.texts import Scores, scored
from flwr_splitmix.segments.batch_norm import enough_values

Learns = Literal["all", "tail"]


class StepExchanges(GraphlessExchanges):
    """The part of a U-shaped client that takes steps.

    Parameters
    ----------
    learns
        "all", or "tail" alone.
    hiding, ends, batches, tests, scores, device
        See `GraphlessExchanges`.

    Attributes
    ----------
    steps
        Steps taken in this round.
    """

    def __init__(
        self,
        *,
        learns: Learns,
        hiding: Hiding,
        ends: Ends,
        batches: Batches,
        tests: Tests,
        scores: Scores,
        device: torch.device,
    ) -> None:
        super().__init__(
            hiding=hiding, ends=ends, batches=batches, tests=tests, scores=scores, device=device
        )
        self.learns = learns
        self._forget_round()

    def _forget_round(self) -> None:
        self.steps = 0
        self._losses: list[float] = []
        self._sent: Sent | None = None
        self._local: list[tuple[Tensor, Tensor]] = []
        self._progress = 0.0
        self._decoded = False
        self._public = []

    # What a subclass may override.

    def obfuscate(self, batch: MaskedBatch) -> Sent:
        """Turn a batch, private or public, into messages to send."""
        return self.hiding.obfuscate(batch)

    def recover(self, outputs: Sequence[Tensor], sent: Sent) -> Tensor:
        """Turn the trunk's outputs, (b, T, d) of each message, into its hidden states of the batch.

        They are (b, T, d), in the graph of the outputs.
        """
        return self.hiding.recover(outputs, sent)

    @property
    def own_loss(self) -> bool:
        """Whether a subclass, or that of a hiding, has its own loss: labels may have any form."""
        of_client = type(self).loss is not StepExchanges.loss
        return of_client or is_own(type(self.hiding), "loss")

    def loss(self, hidden: Tensor, sent: Sent) -> Tensor:
        """Return the mean loss of the batch, a scalar, given what `recover` returned: (b, T, d).

        A subclass with another loss, of the client or of its hiding, may have labels of another
        form, and then needs scores of its own (`scores`).

        Raises
        ------
        ExamplesError
            Raised by a loss of this package; see `Hiding.loss`.
        """
        return self.hiding.loss(hidden, sent)

    def perturb(self, gradient: Tensor, hidden: Tensor, sent: Sent) -> Tensor:
        """Return what to send to the trunk in place of the loss's gradient (b, T, d) at `hidden`.

        It has the shape and dtype of the gradient; see `Hiding.perturb`.
        """
        return self.hiding.perturb(gradient, hidden, sent)

    # What the server calls, besides the exchanges without a graph.

    @exchange(place=("number",))
    def encode(
        self,
        *,
        number: int,
        progress: float,
        gradient: Sequence[Tensor] | None,
        last: bool = False,
    ) -> dict[str, Any]:
        """Finish the last step at the head and send this step's messages.

        Parameters
        ----------
        number
            The step of the round, from 0.
        progress
            Global progress in rounds, for the schedule.
        gradient
            The last step's gradient at each message, (b, T, d); None if it did not arrive: then
            no optimizer step is taken, unless the tail alone learns.
        last
            Whether the round ends here and nothing more is sent.

        Returns
        -------
        {"messages": [tensor (b, T, d), ...], "mask": uint8 (b, T)}, plus "public" if public texts
        are due; or {}.

        Raises
        ------
        ClientError
            If steps of calibration are left, or the last step cannot be taken.
        """
        self._learn(gradient)
        if last:
            return {}
        self._check_calibrated()
        due = self.hiding.refines(self.batches.drawn + 1)
        public = self._send_public() if due else {}
        example = self.batches.next_batch(self.order.seed, self.order.client)
        self.segments.train()
        self.ends.optimizer.zero_grad()
        self.hiding.charge("train", self.batches.indices)
        self._sent = self._obfuscated(MaskedBatch.of(example, self.device))
        self._progress, self._decoded = progress, False
        return self._sent.outgoing() | public

    def _learn(self, gradient: Sequence[Tensor] | None) -> None:
        sent, self._sent = self._sent, None
        local, self._local = self._local, []
        if sent is None or not self._decoded:
            return
        if self.learns == "all":
            if gradient is None:
                return
            check_received("the server's gradient of message", gradient, bounded=True)
            if sent.penalty is not None:
                local.append((sent.penalty, torch.ones_like(sent.penalty)))
            self.ends.backward(
                [*sent.messages, *(tensor for tensor, _ in local)],
                [*gradient, *(each for _, each in local)],
            )
        self.hiding.before_update()
        inputs = sent.batch.inputs if self.may_name_data() else None
        self.ends.step(self._progress, self.order.num_rounds, inputs)
        self.steps += 1

    @exchange(place=("number",))
    def decode(
        self,
        *,
        number: int,
        outputs: Sequence[Tensor],
        public: Sequence[Sequence[Tensor]] | None = None,
    ) -> dict[str, Any]:
        """Score the trunk's outputs against the labels.

        Parameters
        ----------
        outputs
            The trunk's output for each message, (b, T, d).
        public
            The same for each group of public texts sent with them.

        Returns
        -------
        {"gradients": [tensor (b, T, d), ...]}: of the mean loss at each output; an empty list if
        only the tail learns.

        Raises
        ------
        ClientError
            If the outputs are not those of the last messages, a method of a subclass returns
            something else than it must, or the loss is NaN or infinite and no epsilon is kept.
        """
        if self._decoded:
            raise ClientError("the server asks for the gradients of one batch twice")
        sent = self._expected(self._sent, outputs)
        loss, gradient, gradients = self.loss_and_gradients(outputs, sent)
        if self.learns == "all" and sent.local is not None:
            self._local = [(sent.local, gradient)]
        if self.own_loss or len(scored(sent.batch.labels)):  # else there was nothing to predict
            self._losses.append(loss.item())
        self._decoded = True
        if public is not None:
            self._receive_public(public, None)
        return {"gradients": gradients}

    def loss_and_gradients(
        self, outputs: Sequence[Tensor], sent: Sent
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return what a batch's messages have taught, given the trunk's outputs for them.

        Parameters
        ----------
        outputs
            (b, T, d) of each message.

        Returns
        -------
        The mean loss, a scalar; its gradient at the hidden states, (b, T, d); and the gradients to
        return, (b, T, d) for each message, or none if only the tail learns.

        Raises
        ------
        ClientError
            As `decode`.
        """
        leaves = [output.to(self.device).detach().requires_grad_() for output in outputs]
        recovered = checked_hidden(self.recover(leaves, sent), self.hiding.side.width)
        hidden = recovered.detach().requires_grad_()
        with (
            restrained("loss fails on dtypes", hides=not self.may_name_data()),
            enough_values("tail"),
            labels_explained(sent.batch.labels, hidden.dtype),
        ):
            # A copy, because the tail may overwrite its input, as an activation in place does.
            loss = checked_loss(self.loss(hidden.clone(), sent))
            loss.backward()  # type: ignore[no-untyped-call]
        gradient = checked_gradient(hidden.grad)
        if self.may_name_data():
            returned = gradient if self.learns == "all" else None
            check_loss(loss, returned, self.ends.segments["tail"], sent.batch.labels)
        if self.learns != "all":
            return loss, gradient, []
        perturbed = checked_perturbed(self.perturb(gradient, hidden.detach(), sent), gradient)
        gradients = gradients_through(recovered, leaves, perturbed)
        return loss, gradient, checked_returned(self.hiding.returned(gradients, sent), gradients)
