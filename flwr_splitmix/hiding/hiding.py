"""The base class of hiding methods, the U shape's counterpart of mixers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from flwr_splitmix.data.examples import ExampleSet
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding.charges import Charges, PlannedClient
from flwr_splitmix.hiding.exchanged import ClientSide, SentBatch
from flwr_splitmix.hiding.facts import HidingFacts
from flwr_splitmix.hiding.public_texts import PublicTexts
from flwr_splitmix.scoring.texts import check_labels, text_loss
from flwr_splitmix.values import options_of
from flwr_splitmix.words import with_article


class Hiding(PublicTexts, HidingFacts):
    """How a U-shaped client hides its data; this one, the plain U shape, hides nothing.

    One class holds the client half and the server half of a method. A `UShapeClient` has an
    instance and calls it in this order: `obfuscate` makes the messages of a batch, `recover` reads
    the trunk's outputs, `loss` scores them in training, `perturb` changes the gradient to return,
    and `returned` each message's part of it; in evaluation `logits` follows `recover`. A
    `UShapeStrategy` has the class (its attribute `hiding`): it passes any messages through the
    trunk, and reads its facts (`HidingFacts`). So do apps and attacks; none knows a method
    by its name, but for an attack that undoes a single one. What a server must compute for a method
    belongs here too, as a class method that the strategy calls.

    A method that calibrates on public texts defines how often in `calibration_steps`, which must be
    0 once they are taken, and `refines`, and implements the other methods of `PublicTexts`; the
    client does the exchanges. `Calibrating` is a base class of methods with a network to calibrate.

    An object belongs to one client, which attaches it at the start of every round, and releases it
    at the end of one of training.

    Parameters
    ----------
    public
        Public texts for a method that needs some, tokenised like the client's; None for none.

    Raises
    ------
    TypeError
        If the public texts are not a map-style data set of (tokens, label) pairs.

    Source: split learning's U shape (Vepakomma et al., 2018).
    """

    own_masks = False  # of this class's own `obfuscate`
    mixes_batch = False

    def __init__(self, public: ExampleSet | None = None) -> None:
        super().__init__(public)
        self._side: ClientSide | None = None

    @property
    def side(self) -> ClientSide:
        """The client in the round in progress.

        Raises
        ------
        RuntimeError
            If no round has begun yet.
        """
        if self._side is None:
            raise RuntimeError(f"this {type(self).__name__} has not been attached to a round")
        return self._side

    def attach(self, side: ClientSide) -> None:
        """Begin a round of a client.

        Raises
        ------
        ValueError
            If the object already belongs to another client: they would share its state.
        """
        if self._side is not None and self._side.head is not side.head:
            raise ValueError(
                f"{with_article(type(self).__name__)} belongs to one client; make one for each"
            )
        self._side = side

    def release(self) -> None:
        """End a round of training; leave head and tail as they were found, but for their weights.

        It may be called at any time: `fit` does at its end, for rounds that were interrupted.
        """

    def rehearse(self, ends: nn.ModuleDict, batch: MaskedBatch, *, single: bool) -> None:
        """Try a step on copies of a client's head and tail; does nothing here.

        A client calls it before its first round if the hiding keeps an epsilon.

        Parameters
        ----------
        ends
            The copies, "head" and "tail", whose weights and gradients are lost.
        batch
            A few examples.
        single
            Whether the client's batches have one example each.

        Raises
        ------
        ValueError
            If the epsilon would not hold for such a head or tail.
        """

    def made_with(self) -> dict[str, Any]:
        """Return the options that it was made with, by name, as JSON values; data sets left out.

        A run that continues warns of those that differ. Here they are the attributes with the
        names of the class's parameters; a subclass that does not keep its options so adds them.
        """
        return options_of(self)

    @property
    def longest(self) -> int | None:
        """Most tokens that a text may have; None for no limit."""
        return None

    @classmethod
    def sends_as(cls) -> type[Hiding]:
        """Return the hiding whose messages this method's clients send: itself.

        A method that changes what is learned, and not what is sent, returns the one it sends as:
        an attack makes messages with it.
        """
        return cls

    @classmethod
    def names(cls) -> str:
        """Return the names of this method and of those that it derives from, between spaces."""
        return " ".join(each.__name__ for each in cls.__mro__ if issubclass(each, Hiding))

    def charge(self, kind: str, records: np.ndarray) -> None:
        """Account for examples whose messages are about to leave; does nothing without noise.

        A subclass that overrides it states that its accounting covers the subclass's own methods.

        Parameters
        ----------
        kind
            "train", or the kind of the evaluation.
        records
            int64 (b,): indices of the client's examples of that kind.
        """

    def planned_charges(self, planned: PlannedClient) -> Charges | None:
        """Return what `charge` is going to charge in a run; None if that is not known beforehand.

        It speaks of the `charge` of its own class, and of no subclass that has another one.
        """
        return None

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        """Turn a batch into messages to send; here the head's hidden states unchanged."""
        return SentBatch([self.side.head(batch.inputs, batch.mask)], batch.mask, batch)

    def recover(self, outputs: Sequence[Tensor], sent: SentBatch) -> Tensor:
        """Turn the trunk's outputs, (b, T, d) of each message, into its hidden states of the batch.

        In training, gradients flow back through this method to the outputs; one that it ignores,
        such as a decoy's, gets a gradient of 0.
        """
        return outputs[0]

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        """Return the mean loss of the batch, a scalar, given what `recover` returned: (b, T, d).

        A loss of your own that does not build on this one may have labels of another form.

        Raises
        ------
        ExamplesError
            If labels are neither a class for each example nor a text's tokens; also raised by the
            losses of this package's other hidings.
        """
        check_labels(sent.batch)
        return text_loss(self.logits(hidden, sent), sent.batch.labels)

    def perturb(self, gradient: Tensor, hidden: Tensor, sent: SentBatch) -> Tensor:
        """Return what to send to the trunk in place of the loss's gradient at `hidden`.

        Parameters
        ----------
        gradient, hidden
            The gradient, and what `recover` returned: (b, T, d) both, without a graph.

        Returns
        -------
        A gradient of the same shape and dtype.
        """
        return gradient

    def returned(self, gradients: Sequence[Tensor], sent: SentBatch) -> list[Tensor]:
        """Return what to send to the trunk in place of the gradients at its outputs.

        Parameters
        ----------
        gradients
            One per message, (b, T, d): the gradient from `perturb`, backpropagated by `recover`.
        """
        return list(gradients)

    @property
    def own_label(self) -> float:
        """Share of an example's label in its loss; the batch's next example has the rest."""
        return 1.0

    def logits(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        """Return the logits that an evaluation scores, given what `recover` returned.

        Returns
        -------
        (b, L), or (b, T, V) for the tokens of `sent.batch`.
        """
        logits: Tensor = self.side.tail(hidden, sent.batch.mask)
        return logits

    def before_update(self) -> None:
        """Change the complete gradients of head and tail before the optimizer step."""

    @property
    def epsilon(self) -> float | None:
        """The epsilon that the client's messages have spent; None if not accounted for."""
        return None

    def metrics(self) -> dict[str, float]:
        """Return additional metrics of a round, besides the client's own."""
        return {}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what must survive between rounds, under names distinct from the client's."""
        return {}, {}

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state`, passed together with the client's own; a round must be attached."""

    def local_trunk(self, trunk: nn.Module) -> nn.Module:
        """Return the module between head and tail for a client that has the trunk itself."""
        return trunk
