"""Scores of guesses at patches' places and owners, with the scores of blind guesses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from flwr_splitmix.attacks.release import Origin
from flwr_splitmix.seeding import generator

SWAPS = 8
"""Most guesses at other releases that stand for blind ones, for each row."""


def in_place(guessed: Tensor, origin: Origin, row: int) -> float | None:
    """Return the share of patches whose places in their own images are guessed.

    Every slot that had a patch counts; one that the attack left unknown (-1) is wrong.

    Parameters
    ----------
    guessed
        int64 (N,): the position of the patch at each slot.

    Returns
    -------
    None if no slot had a patch.
    """
    patches = len(guessed)
    order = np.arange(patches) if origin.order is None else origin.order[row].numpy() % patches
    filled = np.full(patches, True) if origin.owners is None else origin.owners[row].numpy() >= 0
    return float((guessed.numpy() == order)[filled].mean()) if filled.any() else None


def attributed(guessed: np.ndarray, owners: np.ndarray) -> float:
    """Return the share of patches given to their owners, up to the owners' numbering.

    Parameters
    ----------
    guessed, owners
        int64 (N,); patches of owner -1 do not count, and there must be others.
    """
    owned = owners >= 0
    names, columns = np.unique(owners[owned], return_inverse=True)
    called, rows = np.unique(guessed[owned], return_inverse=True)
    table = np.zeros((len(called), len(names)))
    np.add.at(table, (rows, columns), 1)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / owned.sum())


def largest_share(owners: np.ndarray) -> float:
    """Return the largest owner's share of the patches that have one."""
    counts = np.unique(owners[owners >= 0], return_counts=True)[1]
    return float(counts.max() / counts.sum())


def attributed_blindly(
    guesses: Sequence[np.ndarray], owners: Sequence[np.ndarray], releases: Sequence[int], seed: int
) -> float:
    """Return the mean share of patches that guesses give to their owners without any information.

    The owners' numbering favours every guess, a blind one too. Here each row gets the attack's own
    guesses at rows of other releases, whose masks say nothing about its own; with one release, its
    own guess with the patches in random places.

    Parameters
    ----------
    guesses, owners
        int64 (N,) for each row.
    releases
        The release of each row.
    """
    by_release: dict[int, list[int]] = {}
    for row, release in enumerate(releases):
        by_release.setdefault(release, []).append(row)
    names = list(by_release)
    shares = []
    for place, name in enumerate(names):
        for position, row in enumerate(by_release[name]):
            if len(names) == 1:
                rng = generator(seed, "blind owners", row)
                blind = [rng.permutation(guesses[row]) for _ in range(SWAPS)]
            else:
                others = [
                    by_release[names[(place + step) % len(names)]]
                    for step in range(1, min(len(names), SWAPS + 1))
                ]
                blind = [guesses[rows[position % len(rows)]] for rows in others]
            shares.append(np.mean([attributed(guess, owners[row]) for guess in blind]))
    return float(np.mean(shares))
