"""A check of the value that an attack's `run` returns: scores of a wrong one would show no leak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flwr_splitmix.values import whole_number
from flwr_splitmix.words import counted, described

if TYPE_CHECKING:
    from flwr_splitmix.attacks.base import Attack, View


@dataclass(frozen=True)
class Guess:
    """An attack's guesses about a view.

    Parameters
    ----------
    values
        One entry per guess. Goal "images": float (m, C, H, W), 0 to 1. "order": int64 (m, N), the
        position of the patch at each slot. "owners": int64 (m, N), the owner of each patch, in any
        numbering. "labels": int64 (m,), or scores (m,) or (m, L). "membership": float (m,), higher
        if the example is more likely to have been trained on.
    confidence
        float (m,): the attack's own confidence, in any unit; higher is more certain.
    where
        For each guess its release, by position in the view, and its row. A row may have several
        guesses: one per image mixed there, in any order.
    """

    values: Tensor
    confidence: Tensor
    where: Sequence[tuple[int, int]]


def checked_guess(attack: Attack, guess: object, view: View) -> Guess:
    """Return an attack's guess about a view; its `where` are pairs of ints.

    Raises
    ------
    TypeError
        If the value is not a `Guess` of tensors and pairs of numbers.
    ValueError
        If its parts differ in length, its values have another shape or kind than the attack's
        goal requires, a number is NaN or a value infinite, or a place is not in the view.
    """
    run = f"{type(attack).__name__}.run"
    if not isinstance(guess, Guess):
        raise TypeError(
            f"{run} returns {described(guess)}; expected a Guess(values, confidence, where)"
        )
    where = _places(run, guess.where, view)
    form, fits = _form(attack, guess.values, len(where), view)
    if not fits:
        raise ValueError(
            f"{run} returns a Guess with values {_kind(guess.values)} at "
            f"{counted(len(where), 'place')} (where); expected {form}, one for each place"
        )
    confidence: object = guess.confidence
    if not isinstance(confidence, Tensor) or tuple(confidence.shape) != (len(where),):
        raise ValueError(
            f"{run} returns a Guess with confidence {_kind(confidence)}; expected a float tensor "
            f"({len(where)},), one for each guess"
        )
    if not bool(torch.isfinite(guess.values).all()):
        raise ValueError(
            f"{run} returns a Guess whose values have NaN or infinite numbers; they must be "
            "finite: leave out places at which there is no guess"
        )
    if bool(torch.isnan(confidence).any()):
        raise ValueError(f"{run} returns a Guess whose confidence has NaN; expected numbers")
    return Guess(guess.values, confidence, where)


def _places(run: str, where: object, view: View) -> list[tuple[int, int]]:
    """Return (release, row) of every guess, once each is known to be in the view."""
    rows = [len(release.smashed) for release in view.releases]
    expected = "expected a list of pairs (release, row), a release's position in view.releases"
    if not isinstance(where, Sequence):
        raise TypeError(f"{run} returns a Guess with where {described(where)}; {expected}")
    places: list[tuple[int, int]] = []
    for number, place in enumerate(where):
        try:
            release, row = (whole_number("where", each) for each in place)
        except (TypeError, ValueError):
            raise TypeError(
                f"{run} returns a Guess with where[{number}] {described(place)}; {expected}"
            ) from None
        if not 0 <= release < len(rows):
            raise ValueError(
                f"{run} returns a Guess with where[{number}] ({release}, {row}), but the view has "
                f"{counted(len(rows), 'release')}, counted from 0"
            )
        if not 0 <= row < rows[release]:
            raise ValueError(
                f"{run} returns a Guess with where[{number}] ({release}, {row}), but release "
                f"{release} has {counted(rows[release], 'row')}, counted from 0"
            )
        places.append((release, row))
    return places


def _form(attack: Attack, values: object, guesses: int, view: View) -> tuple[str, bool]:
    """Return the form that a goal requires of values, in words, and whether these have it."""
    knowledge, goal = view.knowledge, attack.goal
    shape = tuple(values.shape) if isinstance(values, Tensor) else None
    floating = isinstance(values, Tensor) and values.is_floating_point()
    if goal == "images":
        needed = (guesses, *knowledge.image_shape)
        return f"a float tensor {needed}, images from 0 to 1", shape == needed and floating
    if goal in ("order", "owners"):
        subject = "the position" if goal == "order" else "the owner"
        patches = (guesses, knowledge.geometry.patches)
        return (
            f"an int64 tensor {patches}, {subject} of each patch",
            shape == patches and not floating,
        )
    scores = (guesses, knowledge.num_classes)
    if goal == "labels":
        form = f"an int64 tensor ({guesses},), classes, or scores, float ({guesses},) or {scores}"
        return form, shape == (guesses,) or (shape == scores and floating)
    return f"a float tensor ({guesses},), scores", shape == (guesses,) and floating


def _kind(value: object) -> str:
    """Return a value's shape and dtype in words."""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} of {value.dtype}"
    return described(value)
