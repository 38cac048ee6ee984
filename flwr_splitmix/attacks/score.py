"""The score of an attack: likeness to the truth, beside that of any other text."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Score(NamedTuple):
    """|cos| with the target's hidden states, the means removed: 1 is the target itself.

    Attributes
    ----------
    best, best_index
        Of the best component, which only the truth tells.
    picked
        Of the component that an attacker without the truth would take: the first, by whatever
        order the attack returns (`blind_source`: the least Gaussian first).
    floor
        What another text's hidden states score: positions and the model's habits are common.
    """

    best: float
    best_index: int
    picked: float
    floor: float


def score(components: Tensor, target: Tensor, floor: Tensor) -> Score:
    """Score what an attack returned.

    Parameters
    ----------
    components
        (n, ...) estimates, or one estimate shaped as the target.
    target, floor
        The target's hidden states and another text's, of one shape.

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
    """Remove the mean of (..., n) and scale to unit length, in float64; a constant becomes 0."""
    wide = rows.detach().double().cpu()
    wide = wide - wide.mean(-1, keepdim=True)
    return torch.nn.functional.normalize(wide, dim=-1)
