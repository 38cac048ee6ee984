"""The known samples of attacks on labels: one of each class, which is not scored."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from flwr_splitmix.attacks.base import Attack, Guess
from flwr_splitmix.attacks.case import Case
from flwr_splitmix.attacks.recording.vault import Truth

Hints = Mapping[tuple[int, int], int]
"""Labels that an attacker knows, such as its own, by release and row."""


def hints(kind: type[Attack], case: Case) -> Hints:
    """Return the first row of each class in the view, for an attack that is given such.

    There are none if images have several labels.
    """
    truth = case.truth
    first: dict[int, tuple[int, int]] = {}
    if not kind.hinted or truth.pictures.labels.ndim > 1:
        return {}
    for number, origin in enumerate(truth.origins):
        for row, source in enumerate(origin.sources[:, 0].tolist()):
            if source >= 0:
                first.setdefault(int(truth.pictures.labels[source]), (number, row))
    return {at: label for label, at in first.items()}


def without_hinted(guess: Guess, hints: Hints, truth: Truth) -> Guess:
    """Return a guess without the images whose labels the attacker was given."""
    if not hints:
        return guess
    hinted_images = {_image(at, truth) for at in hints}
    remaining = [
        number for number, at in enumerate(guess.where) if _image(at, truth) not in hinted_images
    ]
    rows = torch.tensor(remaining, dtype=torch.int64)
    where = [guess.where[number] for number in remaining]
    return Guess(guess.values[rows], guess.confidence[rows], where)


def _image(at: tuple[int, int], truth: Truth) -> int:
    release, row = at
    return int(truth.origins[release].sources[row, 0])
