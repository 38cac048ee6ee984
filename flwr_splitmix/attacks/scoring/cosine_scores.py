"""Scores of estimated hidden states: similarity to the true ones, and to those of another text."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Score(NamedTuple):
    """|cos| with the target's hidden states, means removed: 1 for the target itself.

    Attributes
    ----------
    best, best_index
        Score and index of the best component, which only the truth reveals.
    picked
        Score of the component that an attacker without the truth would choose: the first in the
        attack's order (`blind_source`: the least Gaussian first).
    floor
        Score of another text's hidden states, which share positions and model-specific features.
    """

    best: float
    best_index: int
    picked: float
    floor: float


def score(components: Tensor, target: Tensor, floor: Tensor) -> Score:
    """Score the estimates of an attack.

    Parameters
    ----------
    components
        (n, ...) estimates, or one estimate of the target's shape.
    target, floor
        The target's hidden states and another text's, of the same shape.

    Raises
    ------
    ValueError
        If shapes do not fit.
    """
    guesses = components.unsqueeze(0) if components.ndim == target.ndim else components
    if guesses.shape[1:] != target.shape or floor.shape != target.shape:
        raise ValueError(
            f"components have shape {tuple(components.shape)} and floor {tuple(floor.shape)}; "
            f"they must be (n, ...) and (...) with the target's {tuple(target.shape)}"
        )
    rows, truth = _centred(guesses.flatten(1)), _centred(target.flatten())
    cosines = (rows @ truth).abs()
    best = int(cosines.argmax())
    other = float((_centred(floor.flatten()) @ truth).abs())
    return Score(float(cosines[best]), best, float(cosines[0]), other)


def _centred(rows: Tensor) -> Tensor:
    """Subtract the mean over n from (..., n) and normalise, in float64; constants become 0."""
    wide = rows.detach().double().cpu()
    wide = wide - wide.mean(-1, keepdim=True)
    return torch.nn.functional.normalize(wide, dim=-1)
