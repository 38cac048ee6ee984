"""The base class of hiding methods, the U shape's counterpart of mixers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.data.texts.batch import TextBatch
from flwr_splitmix.scoring.texts import text_loss


@dataclass(frozen=True)
class ClientSide:
    """What a hiding knows of its client in a round.

    Parameters
    ----------
    head
        (ids int64 (b, T), mask (b, T)) to hidden states (b, T, d).
    tail
        (hidden states (b, T, d), mask (b, T)) to logits (b, T, V) or (b, L).
    device
        Where both compute.
    width
        d of the hidden states.
    batch_size
        Texts in a training batch.
    seed, client
        The run's seed and the client's index, of which every public draw is a function.
    examples
        Texts of the client by what they are for: "train", and the kinds of evaluation.
    attempt
        How often what is asked of the client in this round may have been asked before.
    averaged
        Whether head and tail leave the client at the end of the round.
    returns
        Whether gradients go back to the trunk in training.
    """

    head: nn.Module
    tail: nn.Module
    device: torch.device
    width: int
    batch_size: int
    seed: int
    client: int
    examples: Mapping[str, int] = field(default_factory=dict)
    attempt: int = 0
    averaged: bool = False
    returns: bool = True


@dataclass
class Sent:
    """What a client has sent to the trunk, and what it needs to read the answer.

    Parameters
    ----------
    messages
        Tensors (b, T, d) in the head's graph.
    mask
        int64 (b, T): what the trunk is told to attend to.
    batch
        The texts that the answer is about.

    A subclass may add to it what it needs to read the answer; that stays at the client.

    Attributes
    ----------
    local
        (b, T, d) in the head's graph: what `recover` took of the head's own hidden states, if it
        did. The loss's gradient there goes to the head without crossing the link.
    penalty
        A scalar in the head's graph that the head's step makes smaller besides the loss, if there
        is one. Neither it nor its gradient crosses the link.
    """

    messages: list[Tensor]
    mask: Tensor
    batch: TextBatch
    local: Tensor | None = field(default=None, init=False)
    penalty: Tensor | None = field(default=None, init=False)

    def outgoing(self) -> dict[str, Any]:
        """Return what the server gets: messages without a graph, and the mask as uint8."""
        return {
            "messages": [message.detach() for message in self.messages],
            "mask": self.mask.to(torch.uint8),
        }


class Hiding:
    """How a U-shaped client hides its texts; this one, the plain U shape, hides nothing.

    Client half and server half of a method are one class. A `UShapeClient` is given an object and
    calls it in this order: `obfuscate` makes the messages of a batch, `recover` reads the trunk's
    outputs, `loss` scores them in training, `perturb` changes the gradient that goes back and
    `returned` what of it each message gets; in an evaluation `logits` follows on `recover`. A
    `UShapeStrategy` is given the class (its attribute `hiding`): it passes messages through the
    trunk whatever they are, and reads the facts below. What a server must compute for a method
    belongs here too, as a class method that the strategy calls.

    A method that calibrates on public texts says how often in `calibration_steps` and `refines`,
    and has the four methods behind them; the exchanges are the client's.

    An object belongs to one client, which attaches it at the start of every round.

    Attributes
    ----------
    warning
        A warning for the user who starts a run, "" for none; the strategy logs it.

    Source: split learning's U shape (Vepakomma et al., 2018).
    """

    warning: ClassVar[str] = ""

    def __init__(self) -> None:
        self._side: ClientSide | None = None

    @property
    def side(self) -> ClientSide:
        """The client in the round in progress.

        Raises
        ------
        RuntimeError
            Before the first round.
        """
        if self._side is None:
            raise RuntimeError(f"this {type(self).__name__} has not been attached to a round")
        return self._side

    def attach(self, side: ClientSide) -> None:
        """Begin a round of a client.

        Raises
        ------
        ValueError
            If another client has this object already: its state would be that of both.
        """
        if self._side is not None and self._side.head is not side.head:
            raise ValueError(f"a {type(self).__name__} belongs to one client; make one for each")
        self._side = side

    # Every batch.

    def charge(self, kind: str, records: np.ndarray) -> None:
        """Account for texts whose messages are about to leave; a method without noise does not.

        Parameters
        ----------
        kind
            "train", or the kind of the evaluation.
        records
            int64 (b,): which of the client's texts of that kind.
        """

    def obfuscate(self, batch: TextBatch) -> Sent:
        """Turn texts into what is sent; here the head's hidden states as they are."""
        return Sent([self.side.head(batch.ids, batch.mask)], batch.mask, batch)

    def recover(self, outputs: Sequence[Tensor], sent: Sent) -> Tensor:
        """Turn the trunk's outputs, (b, T, d) of each message, into its hidden states of the texts.

        In training the outputs are in their graph, and gradients go back through what this does.
        """
        return outputs[0]

    def loss(self, hidden: Tensor, sent: Sent) -> Tensor:
        """Return the mean loss of the texts, given what `recover` returned."""
        return text_loss(self.logits(hidden, sent), sent.batch.labels)

    def perturb(self, gradient: Tensor, hidden: Tensor, sent: Sent) -> Tensor:
        """Return what goes back to the trunk in place of the loss's gradient at `hidden`."""
        return gradient

    def returned(self, gradients: Sequence[Tensor], sent: Sent) -> list[Tensor]:
        """Return what goes back to the trunk in place of the gradients at its outputs.

        Parameters
        ----------
        gradients
            Of each message, (b, T, d): what `recover` made of the gradient that `perturb` returned.
        """
        return list(gradients)

    def logits(self, hidden: Tensor, sent: Sent) -> Tensor:
        """Return what an evaluation scores, given what `recover` returned.

        Returns
        -------
        (b, L), or (b, T, V) for the tokens of `sent.batch`.
        """
        logits: Tensor = self.side.tail(hidden, sent.batch.mask)
        return logits

    def before_update(self) -> None:
        """Change the gradients of head and tail, which are complete, before they are learned."""

    # Public texts.

    @property
    def calibration_steps(self) -> int:
        """Steps of calibration on public texts that are left to do before the first batch."""
        return 0

    def refines(self, step: int) -> bool:
        """Return whether public texts travel with training step `step`, from 1 over all rounds."""
        return False

    def public_batch(self) -> TextBatch | None:
        """Draw the next batch of public texts; None where there are none."""
        return None

    def public_groups(self, sent: Sent) -> list[Sent]:
        """Return all that travels of a public batch, given what `obfuscate` made of it."""
        return [sent]

    def learn_public(
        self, outputs: Sequence[Sequence[Tensor]], groups: Sequence[Sent], step: int | None
    ) -> None:
        """Learn from the trunk's outputs of public texts.

        Parameters
        ----------
        outputs
            Of each message of each group, (b, T, d), on the client's device and without a graph.
        groups
            What `public_groups` returned.
        step
            Of the calibration before the first batch, from 0; None beside a training step.
        """

    # What outlives a step.

    @property
    def epsilon(self) -> float | None:
        """What the client's messages have cost its texts; None where nobody counts."""
        return None

    def metrics(self) -> dict[str, float]:
        """Return what a round's metrics say besides the client's own."""
        return {}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what must survive between rounds, under names that are not the client's."""
        return {}, {}

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `state`, given it among the client's own; a round has been attached."""

    def local_trunk(self, trunk: nn.Module) -> nn.Module:
        """Return what a client that is given the trunk puts between its head and its tail."""
        return trunk
