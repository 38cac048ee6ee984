"""Batches whose examples were each mixed with the next one, solved for every example.

A client of `NaiveMix` sends `lam h_i + (1 - lam) h_(i+1)` of each example i of a batch, and of the
last with the first. So a batch of b examples is b equations in b unknowns, of which the server
knows all coefficients. They have one solution unless b is even and lam is 0.5: then one direction
is lost, in which the examples have alternating signs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flwr_splitmix.hiding import Hiding, NaiveMix

__all__ = ["BatchRing", "ring_of"]

MAX_LOSS_FACTOR = 1e-4
"""Greatest factor of a direction that counts as lost: solving would multiply rounding errors."""


@dataclass(frozen=True)
class BatchRing:
    """The mixing of each example of a batch with the next one.

    Parameters
    ----------
    lam
        Share of the example itself, 0 < lam <= 1.
    """

    lam: float

    def loses(self, size: int) -> bool:
        """Return whether a batch of this size cannot be solved in one direction."""
        return size % 2 == 0 and abs(2 * self.lam - 1) <= MAX_LOSS_FACTOR

    def matrix(self, size: int) -> Tensor:
        """Return the coefficients of the messages, float64 (size, size)."""
        identity = torch.eye(size, dtype=torch.float64)
        return self.lam * identity + (1 - self.lam) * identity.roll(1, 1)

    def solve(self, messages: Tensor) -> Tensor:
        """Return the examples' hidden states by least squares.

        Parameters
        ----------
        messages
            (b, ...), floating: all messages of a batch, in its order.

        Returns
        -------
        float64 (b, ...), on the CPU. If the ring `loses` a direction, these states have no part in
        it; what is missing is the same for all examples, up to signs that alternate.
        """
        mixtures = messages.detach().cpu().double()
        inverse = torch.linalg.pinv(self.matrix(len(mixtures)), rtol=MAX_LOSS_FACTOR)
        solved: Tensor = inverse @ mixtures.flatten(1)
        return solved.reshape(mixtures.shape)

    def settle(self, states: Tensor, expected: Tensor) -> Tensor:
        """Return solved states with what is missing in them, so that most are as expected.

        Parameters
        ----------
        states
            float64 (b, ...): what `solve` or `settle` returned.
        expected
            Of the same shape, or one that is broadcast to it: guesses at the states. NaN where
            there is none.

        Returns
        -------
        The states, unchanged if the ring loses nothing. Each number that is missing is the median
        of those that the guesses ask for: it is exact where more than half of these are right.
        """
        if not self.loses(len(states)):
            return states
        signs = 1 - 2 * (torch.arange(len(states)) % 2)
        signs = signs.to(states).view(-1, *[1] * (states.ndim - 1))
        corrections = signs * (expected.to(states) - states)
        return states + signs * _middle(corrections).nan_to_num(0.0)


def _middle(values: Tensor) -> Tensor:
    """Return the median along the first dimension without NaN: the mean of the middle two."""
    counts = values.isfinite().sum(0, keepdim=True)
    ordered = values.nan_to_num(torch.inf, torch.inf, torch.inf).sort(0).values
    least = ((counts - 1) // 2).clamp(min=0)
    both = torch.cat([least, (counts // 2).clamp(max=len(values) - 1)])
    return ordered.gather(0, both).mean(0).masked_fill(counts[0] == 0, torch.nan)


def ring_of(hiding: Hiding) -> BatchRing | None:
    """Return the ring in which a hiding mixes a batch; None if it mixes none."""
    return BatchRing(hiding.lam) if isinstance(hiding, NaiveMix) else None
