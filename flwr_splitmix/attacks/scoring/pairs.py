"""Which victims a guess is compared with, and blind guesses at them: only scoring knows victims."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from flwr_splitmix.attacks.base import Guess
from flwr_splitmix.attacks.recording.vault import Truth
from flwr_splitmix.attacks.scoring.image_scores import squared_errors
from flwr_splitmix.seeding import generator

DRAWN_GROUPS = 1000
"""Number of groups of public images to which blind guesses are fitted."""
ROUNDS = 20
"""Number of times that they are assigned anew; pairs of Fashion-MNIST change up to 13 times."""


def pairs_of(guess: Guess, truth: Truth) -> list[tuple[int, int]]:
    """Return (guess, victim) pairs; several guesses at one row get the best assignment.

    A single guess at a row of several victims is a guess at each of them.
    """
    pairs = []
    for (release, row), numbers in _by_row(guess.where).items():
        victims = sorted({int(v) for v in truth.origins[release].sources[row] if v >= 0})
        if victims:
            matches = _matched(guess.values[numbers].cpu(), truth.pictures.images[victims])
            pairs += [(numbers[n], victims[v]) for n, v in matches]
    return pairs


def first_victims(guess: Guess, truth: Truth) -> list[tuple[int, int]]:
    """Return (guess, first victim of its row) for every guess whose row has a victim."""
    pairs = []
    for number, (release, row) in enumerate(guess.where):
        victims = [int(v) for v in truth.origins[release].sources[row] if v >= 0]
        if victims:
            pairs.append((number, victims[0]))
    return pairs


def guessed_blindly(
    make_guess: Callable[[int, int, tuple[int, int]], Tensor],
    guess: Guess,
    pairs: Sequence[tuple[int, int]],
    images: Tensor,
) -> Tensor:
    """Return the blind guess, assigned as `pairs_of` does, at each pair: (n, C, H, W).

    Parameters
    ----------
    make_guess
        From the numbers of guesses and of victims at a row, and its place, (release, row), to
        blind images (guesses, C, H, W).
    guess, pairs
        The guess whose rows are guessed at, and its `pairs_of`.
    images
        (n, C, H, W): the victim of each pair.
    """
    numbers = {place: len(positions) for place, positions in _by_row(guess.where).items()}
    values = torch.empty_like(images)
    for place, positions in _by_row([guess.where[number] for number, _ in pairs]).items():
        blind = make_guess(numbers[place], len(positions), place).to(images)
        for n, v in _matched(blind, images[positions]):
            values[positions[v]] = blind[n]
    return values


def best_blind_images(public: Tensor, guesses: int, victims: int, seed: int) -> Tensor:
    """Return the images that are nearest to groups of public images, one assigned to each.

    Of groups of one they are the centres of k-means.

    Parameters
    ----------
    public
        float (n, C, H, W).
    guesses, victims
        The number of images to return, and of images in a group.

    Returns
    -------
    float (guesses, C, H, W).
    """
    rng = generator(seed, "blind images", guesses, victims)
    groups = rng.integers(len(public), size=(DRAWN_GROUPS, victims))
    first = rng.choice(len(public), guesses, replace=len(public) < guesses)
    centres = public[first].flatten(1)
    for _ in range(ROUNDS):
        costs = torch.cdist(centres, public.flatten(1)).square().numpy()
        assignments = [linear_sum_assignment(costs[:, group]) for group in groups]
        centre = np.concatenate([rows for rows, _ in assignments])
        images = np.concatenate([groups[i, columns] for i, (_, columns) in enumerate(assignments)])
        for index in np.unique(centre):
            centres[index] = public[images[centre == index]].flatten(1).mean(0)
    return centres.view(guesses, *public.shape[1:])


def _by_row(where: Sequence[tuple[int, int]]) -> dict[tuple[int, int], list[int]]:
    at: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, place in enumerate(where):
        at[place].append(number)
    return at


def _matched(guesses: Tensor, images: Tensor) -> list[tuple[int, int]]:
    """Return (guess, image) pairs of the guesses (g, C, H, W) at a row of images (v, C, H, W)."""
    if len(guesses) == 1:
        return [(0, image) for image in range(len(images))]
    cost = torch.stack([squared_errors(one.expand_as(images), images) for one in guesses])
    rows, columns = linear_sum_assignment(cost.numpy())
    return list(zip(rows.tolist(), columns.tolist(), strict=True))
