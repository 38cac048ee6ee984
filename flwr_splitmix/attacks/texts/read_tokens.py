"""Reading words from hidden states: the nearest row of the embedding table."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class TokenReading(NamedTuple):
    """Tokens that were read.

    Attributes
    ----------
    ids
        int64 (...), the nearest token at each place.
    similarity
        Mean |cos| between each place and its token: an attacker's own measure of success.
    """

    ids: Tensor
    similarity: float

    def accuracy(self, ids: Tensor) -> float:
        """Return the fraction of places at which the true ids (...) were read."""
        return float((self.ids == ids.to(self.ids.device)).double().mean())


def read_tokens(hidden: Tensor, table: Tensor) -> TokenReading:
    """Read tokens from hidden states that are known up to scale and sign.

    Parameters
    ----------
    hidden
        (..., d), floating: an attack's estimate of the hidden states after the embedding.
    table
        (V, d), the embedding of each token; if it also adds positions, at an average position.
        The attacker is assumed to know the model before fine-tuning.

    Returns
    -------
    Reading, for the sign that fits better over all places.

    Raises
    ------
    ValueError
        If the widths differ.

    Source: ours, docs/mixguard.md; cosine similarity with the means over d removed.
    """
    if hidden.shape[-1] != table.shape[-1]:
        raise ValueError(
            f"hidden states have width {hidden.shape[-1]} and the table {table.shape[-1]}; "
            "they must be the same"
        )
    cosines = _directions(hidden.flatten(0, -2)) @ _directions(table).mT
    readings = []
    for signed in (cosines, -cosines):
        similarity, ids = signed.max(dim=-1)
        readings.append(TokenReading(ids.reshape(hidden.shape[:-1]), float(similarity.mean())))
    return max(readings, key=lambda reading: reading.similarity)


def _directions(rows: Tensor) -> Tensor:
    wide = rows.detach().to(torch.float32)
    return F.normalize(wide - wide.mean(-1, keepdim=True), dim=-1)
