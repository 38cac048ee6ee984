"""Naive mixing, MixGuard's baseline: two examples' hidden states in one, without decoding."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding.exchanged import SentBatch
from flwr_splitmix.hiding.hiding import Hiding
from flwr_splitmix.scoring.texts import check_labels, text_loss


class NaiveMix(Hiding):
    """Sends `lam h_i + (1 - lam) h_j` for each example i of a batch.

    It hides next to nothing: the messages of a batch are as many equations as it has examples, of
    which the server knows all coefficients. Only two examples mixed in halves are
    indistinguishable.

    Example j is the next one in the batch. The loss is mixed with the same ratio; an evaluation
    sends mixtures too, and scores them on example i. A batch of one has no other and would not be
    mixed: a client refuses a `batch_size` of 1, and sends no single test example.
    A subclass with a `loss` of its own mixes that, too: with `sent.batch.labels` by `lam`, and with
    `sent.batch.labels.roll(-1, 0)` by the rest.

    Parameters
    ----------
    lam
        The mixing ratio, 0 < lam <= 1.

    Raises
    ------
    ValueError
        If lam is out of range.

    Source: the baseline of MixGuard's Tables II and III; lam, and what is mixed with what, are
    ours.
    """

    warning = (
        "Naive Mix hides next to nothing from a server, which has all messages of a batch and "
        "solves them for the examples: docs/language.md#naive-mix"
    )

    own_masks = False
    mixes_batch = True

    def __init__(self, lam: float = 0.5) -> None:
        if not 0 < lam <= 1:
            raise ValueError(f"lam is {lam}; it must be above 0 and at most 1")
        super().__init__()
        self.lam = lam

    @classmethod
    def least_batch(cls, *, texts: bool) -> int:
        """Return 2: an example is mixed with another one."""
        return 2

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        """Mix each example's hidden states with the next one's; the mask covers both."""
        hidden = self.side.head(batch.inputs, batch.mask)
        # After its end, a text contributes nothing to the mixture.
        hidden = hidden * batch.mask.unsqueeze(-1).to(hidden.dtype)
        mixed = self.lam * hidden + (1 - self.lam) * hidden.roll(-1, 0)
        union = batch.mask | batch.mask.roll(-1, 0)
        return SentBatch([mixed], union, replace(batch, mask=union))

    @property
    def own_label(self) -> float:
        """The mixing ratio."""
        return self.lam

    def loss(self, hidden: Tensor, sent: SentBatch) -> Tensor:
        """Return the losses on both examples, mixed with the same ratio."""
        check_labels(sent.batch)
        logits, labels = self.logits(hidden, sent), sent.batch.labels
        return self.lam * text_loss(logits, labels) + (1 - self.lam) * text_loss(
            logits, labels.roll(-1, 0)
        )
