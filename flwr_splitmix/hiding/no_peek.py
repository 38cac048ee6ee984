"""NoPeek: the head also learns to send hidden states that depend less on the inputs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from flwr_splitmix.data.masked_batch import MaskedBatch, holds_ids
from flwr_splitmix.hiding.exchanged import ClientSide, SentBatch
from flwr_splitmix.hiding.hiding import Hiding

MAX_TOKENS = 1024
"""Most tokens of a batch to measure, chosen at random: the cost is quadratic."""


class NoPeek(Hiding):
    """Adds `dcor_weight` times a distance correlation to the head's loss.

    The correlation is between a batch's inputs and the hidden states sent for them. Of images and
    the like, the samples are examples; of texts they are tokens, whose embeddings are constants.
    Messages are those of the plain U shape: nothing is hidden, the head only learns to hide.
    Neither a batch's correlation nor its gradient leaves the client; the mean over a round is in
    the round's metrics.

    Parameters
    ----------
    dcor_weight
        w in "loss + w DCor".

    Raises
    ------
    ValueError
        If it is negative or infinite.

    Source: NoPeek (Vepakomma et al., 2020), equation 1, for images. Using tokens rather than texts
    as samples is ours: for a few long texts the correlation is near 1 whatever the head does.
    """

    warning = (
        "NoPeek hides nothing by itself: heads learn to send what depends less on the inputs, "
        "and nothing bounds what can still be read (docs/language.md)"
    )
    teaches_head = True
    own_masks = False
    mixes_batch = False

    def __init__(self, dcor_weight: float = 1.0) -> None:
        if not (math.isfinite(dcor_weight) and dcor_weight >= 0):
            raise ValueError(
                f"dcor_weight is {dcor_weight}; it must be a finite number, at least 0"
            )
        super().__init__()
        self.dcor_weight = dcor_weight
        self._correlations: list[Tensor] = []

    @classmethod
    def least_batch(cls, *, texts: bool) -> int:
        """Return 2 for images and the like, which are one sample each; a text has several."""
        return 1 if texts else 2

    def attach(self, side: ClientSide) -> None:
        """Begin a round."""
        super().attach(side)
        self._correlations.clear()

    def obfuscate(self, batch: MaskedBatch) -> SentBatch:
        """Send the hidden states unchanged; in training, attach the penalty.

        There is none for a single sample, such as a batch's only token: it depends on no other.

        Raises
        ------
        ValueError
            If there are texts, and the head has no embedding of tokens.
        """
        sent = super().obfuscate(batch)
        hidden = sent.messages[0]
        if torch.is_grad_enabled() and hidden.requires_grad:
            of_tokens = holds_ids(batch.inputs)
            x, y = self._of_tokens(batch, hidden) if of_tokens else (batch.inputs, hidden)
            if len(x) > 1:
                correlation = distance_correlation(x.flatten(1), y.flatten(1))
                sent.penalty = self.dcor_weight * correlation
                self._correlations.append(correlation.detach())
        return sent

    def _of_tokens(self, batch: MaskedBatch, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings (n, e) and hidden states (n, d) of tokens, n <= `MAX_TOKENS`."""
        embeddings = (part for part in self.side.head.modules() if isinstance(part, nn.Embedding))
        words = next(embeddings, None)  # of tokens, which precedes that of positions
        if words is None:
            raise ValueError("NoPeek needs a head with an nn.Embedding of its tokens; it has none")
        chosen = batch.mask.flatten().nonzero()[:, 0]
        if len(chosen) > MAX_TOKENS:
            order = torch.randperm(len(chosen), device="cpu")[:MAX_TOKENS]
            chosen = chosen[order.to(chosen.device)]
        with torch.no_grad():
            embedded = words(batch.inputs.flatten()[chosen])
        return embedded, hidden.flatten(0, 1)[chosen]

    def metrics(self) -> dict[str, float]:
        """Return the mean distance correlation of the round's batches with several samples."""
        if not self._correlations:
            return {}
        return {"distance-correlation": float(torch.stack(self._correlations).mean())}


def distance_correlation(x: Tensor, y: Tensor) -> Tensor:
    """Return the distance correlation of paired samples, between 0 and 1.

    Parameters
    ----------
    x, y
        (n, p) and (n, q), floating; computed in float32 or better. Gradients flow into both.

    Returns
    -------
    A scalar; 0 if the samples of one side are all equal. This statistic is biased upwards for few
    samples of high dimension.

    Raises
    ------
    ValueError
        If they are not pairs of vectors.

    Source: Székely, Rizzo and Bakirov, Measuring and testing dependence by correlation of distances
    (2007), definitions 4 and 5.
    """
    if x.dim() != 2 or y.dim() != 2 or len(x) != len(y) or not len(x):
        raise ValueError(
            f"x is {tuple(x.shape)} and y {tuple(y.shape)}; they must be (n, p) and (n, q), n > 0"
        )
    one, other = _centred(x), _centred(y)
    other = other.to(one.dtype) if one.dtype.itemsize > other.dtype.itemsize else other
    one = one.to(other.dtype)
    together, alone = (one * other).mean(), (one * one).mean() * (other * other).mean()
    if float(alone.detach()) <= 0 or float(together.detach()) <= 0:
        return 0 * together  # no gradient of a root at 0
    return (together / alone.sqrt()).sqrt()


def _centred(samples: Tensor) -> Tensor:
    """Return the distances of all pairs, (n, n), less the means of their rows and columns."""
    exact = samples.to(torch.promote_types(samples.dtype, torch.float32))
    # Exact at distance 0, such as between two places with the same word.
    distances = torch.cdist(exact, exact, compute_mode="donot_use_mm_for_euclid_dist")
    rows = distances.mean(0, keepdim=True)
    return distances - rows - rows.mT + rows.mean()
