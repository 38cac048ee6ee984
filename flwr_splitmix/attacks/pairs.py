"""Which victims a guess is compared with: only scoring knows them."""

from __future__ import annotations

from collections import defaultdict

import torch
from scipy.optimize import linear_sum_assignment

from flwr_splitmix.attacks.base import Guess
from flwr_splitmix.attacks.image_scores import squared_errors
from flwr_splitmix.attacks.vault import Truth


def pairs_of(guess: Guess, truth: Truth) -> list[tuple[int, int]]:
    """Return (guess, victim) pairs; several guesses at one row get the best assignment.

    A single guess at a row of several victims is a guess at each of them.
    """
    at: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, place in enumerate(guess.where):
        at[place].append(number)
    pairs = []
    for (release, row), numbers in at.items():
        victims = sorted({int(v) for v in truth.origins[release].sources[row] if v >= 0})
        if not victims:
            continue
        if len(numbers) == 1:
            pairs += [(numbers[0], victim) for victim in victims]
            continue
        cost = torch.stack(
            [
                squared_errors(guess.values[n].cpu().expand(len(victims), -1, -1, -1),
                               truth.pictures.images[victims])
                for n in numbers
            ]
        )  # fmt: skip
        rows, columns = linear_sum_assignment(cost.numpy())
        pairs += [(numbers[int(r)], victims[int(c)]) for r, c in zip(rows, columns, strict=True)]
    return pairs


def first_victims(guess: Guess, truth: Truth) -> list[tuple[int, int]]:
    """Return (guess, first victim of its row) for every guess whose row has a victim."""
    pairs = []
    for number, (release, row) in enumerate(guess.where):
        known = [int(v) for v in truth.origins[release].sources[row] if v >= 0]
        if known:
            pairs.append((number, known[0]))
    return pairs
