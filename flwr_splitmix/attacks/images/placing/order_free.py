"""An image expected from what a shuffle cannot hide: the tokens without their order, the label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH = 256
"""Most numbers of a token that are described; wider ones are projected at random."""

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
RIDGES = (10.0, 100.0, 1_000.0, 10_000.0)
FOLDS = 4
LABEL_WEIGHT = 3.0
"""Scale of a label beside moments of variance 1: it is known for certain."""


def moments(tokens: Tensor, seed: int) -> Tensor:
    """Describe tokens (b, N, w) by means, deviations and quantiles, which no order changes."""
    if tokens.shape[2] > WIDTH:
        source = torch.Generator().manual_seed(seed)
        tokens = tokens @ torch.randn(tokens.shape[2], WIDTH, generator=source).to(tokens)
    ranked = tokens.sort(1).values
    at = [round(level * (tokens.shape[1] - 1)) for level in QUANTILES]
    spread = tokens.std(1, correction=0)
    return torch.cat([tokens.mean(1), spread, ranked[:, at].flatten(1)], 1)


@dataclass(frozen=True)
class OrderFree:
    """A ridge regression from moments and labels.

    Parameters
    ----------
    middle, spread
        (F,): of the moments of public images.
    frequencies
        (L,): of classes; what a label is taken for that is not known. (0,) without labels.
    weights, offset
        (F + L, D) and (D,).
    residuals
        (n, D): public images less what is expected of them by regressions on other images.
    """

    middle: Tensor
    spread: Tensor
    frequencies: Tensor
    weights: Tensor
    offset: Tensor
    residuals: Tensor

    @classmethod
    def fit(cls, described: Tensor, labels: Tensor | None, classes: int, targets: Tensor) -> Self:
        """Fit what is wanted (n, D) to `moments` (n, F) and labels, int64 (n,) or None.

        The ridge is the best of `RIDGES` on images that a regression was not fitted to.
        """
        described, targets = described.double(), targets.double()
        middle, spread = described.mean(0), described.std(0, correction=0) + 1e-6
        frequencies = torch.zeros(0, dtype=torch.float64)
        if labels is not None:
            frequencies = F.one_hot(labels, classes).double().mean(0)
        empty = cls(middle, spread, frequencies, targets[:0], targets.mean(0), targets[:0])
        inputs, apart = empty._inputs(described, labels), targets - targets.mean(0)
        folds = torch.arange(len(inputs)) % min(FOLDS, len(inputs))
        residuals = {ridge: apart.clone() for ridge in RIDGES}
        for fold in range(int(folds.max()) + 1):
            held_out = folds == fold
            for ridge, weights in zip(
                RIDGES, _solved(inputs[~held_out], apart[~held_out]), strict=True
            ):
                residuals[ridge][held_out] -= inputs[held_out] @ weights
        best = min(RIDGES, key=lambda ridge: float(residuals[ridge].square().mean()))
        weights = _solved(inputs, apart)[RIDGES.index(best)]
        return cls(middle, spread, frequencies, weights, targets.mean(0), residuals[best])

    def _inputs(self, described: Tensor, labels: Tensor | None) -> Tensor:
        inputs = (described.double() - self.middle) / self.spread
        classes = len(self.frequencies)
        if not classes:
            return inputs
        class_shares = self.frequencies.expand(len(inputs), -1)
        if labels is not None:
            class_shares = F.one_hot(labels, classes).double()
        return torch.cat([inputs, LABEL_WEIGHT * (class_shares - self.frequencies)], 1)

    def __call__(self, described: Tensor, labels: Tensor | None) -> Tensor:
        """Return the expected values, float64 (b, D)."""
        return self._inputs(described, labels) @ self.weights + self.offset


def _solved(inputs: Tensor, targets: Tensor) -> list[Tensor]:
    """Return the weights under each of `RIDGES`."""
    square, products = inputs.T @ inputs, inputs.T @ targets
    one = torch.eye(len(square), dtype=square.dtype)
    return [torch.linalg.solve(square + ridge * one, products) for ridge in RIDGES]
