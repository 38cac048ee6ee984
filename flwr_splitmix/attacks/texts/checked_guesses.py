"""A check of the guesses of an attack on texts: scores of wrong ones would show no leak."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from flwr_splitmix.attacks.texts.view import TextAttack, TextGuess, TextView
from flwr_splitmix.words import counted, described

__all__ = ["checked_guesses"]


def checked_guesses(attack: TextAttack, guesses: object, view: TextView) -> list[TextGuess]:
    """Return an attack's guesses at the texts of a view.

    Raises
    ------
    TypeError
        If the guesses are not a sequence of `TextGuess`.
    ValueError
        If a guess is at no release of the view, has not one token for each place of its release,
        or a confidence that is not a number.
    """
    run = f"{type(attack).__name__}.run"
    if not isinstance(guesses, Sequence):
        raise TypeError(f"{run} returns {described(guesses)}; expected a list of TextGuess")
    checked: list[TextGuess] = []
    for number, guess in enumerate(guesses):
        if not isinstance(guess, TextGuess):
            raise TypeError(
                f"{run} returns {described(guess)} as guess {number}; expected a TextGuess("
                "release, ids, confidence, way)"
            )
        if reason := _misfit(guess, view):
            raise ValueError(f"{run} returns a TextGuess (number {number}) with {reason}")
        checked.append(guess)
    return checked


def _misfit(guess: TextGuess, view: TextView) -> str:
    """Return which part of a guess does not fit a view, and what it must be; "" if all fit."""
    release, ids = guess.release, guess.ids
    if type(release) is not int or not 0 <= release < len(view.releases):
        releases = counted(len(view.releases), "release")
        return f"release {release!r}, but the view has {releases}, counted from 0"
    shape = (view.releases[release].messages.shape[1],)
    if not isinstance(ids, Tensor):
        return f"ids {described(ids)}; expected an int64 tensor {shape}, a token at each place"
    if tuple(ids.shape) != shape or ids.dtype != torch.int64:
        return (
            f"ids {tuple(ids.shape)} of {ids.dtype}; expected an int64 tensor {shape}, a token "
            "at each place of its release"
        )
    words = None if view.knowledge.base is None else view.knowledge.base.vocab_size
    if words is not None and not bool(((ids >= 0) & (ids < words)).all()):
        return f"ids from {int(ids.min())} to {int(ids.max())}; tokens are from 0 to {words - 1}"
    if math.isnan(guess.confidence):
        return "a confidence of NaN; it must be a number"
    return ""
