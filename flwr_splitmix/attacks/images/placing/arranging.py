"""The places of shuffled patches, by a Gaussian of whole images around an expected one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flwr_splitmix.attacks.images.placing.settling import PatchLikelihoods, settled

TURNS = 12
"""Assignments, each with costs under the last one; the best is kept, which is seldom later."""

MAX_PATCHES = 2048
"""Most patches that are assigned together: the time of an assignment is cubic in them."""


class Arranged(NamedTuple):
    """Patches in their places.

    Parameters
    ----------
    places
        int64 (M,): the place of each patch, i N + j for place j of row i.
    energies
        float64 (b,): how unlikely each row is, per number.
    """

    places: Tensor
    energies: Tensor


class OrderedRows(NamedTuple):
    """The images of shuffled rows, once their patches are in their places.

    Parameters
    ----------
    images
        (b, C, H, W).
    places
        int64 (b, N): the place of each slot's patch, numbered as `Origin.order`.
    sure
        (b,): higher if more likely.
    """

    images: Tensor
    places: Tensor
    sure: Tensor


def arrange(
    patches: Tensor, expected: Tensor, looks: Sequence[PatchLikelihoods], home: Tensor | None = None
) -> Arranged:
    """Assign patches (M, P) to the places of rows, M = b N, one to each; see `settled`.

    Parameters
    ----------
    expected
        float64 (b, N, P): an expectation of each row's image.
    looks
        For each row, the distributions of an image's difference from it.
    home
        (M, b): log probability that a patch is from a row; None if that reveals nothing.
    """
    b, n, width = expected.shape
    rows = list(zip(expected, looks, strict=True))
    home_costs = 0 if home is None else -2 * home.repeat_interleave(n, 1)
    distinct = {id(each): each for each in looks}
    alone_squares = {name: each.alone.squares(patches) for name, each in distinct.items()}
    given_squares = {name: each.given.squares(patches) for name, each in distinct.items()}

    def look(places: Tensor) -> tuple[float, Tensor, Arranged]:
        arranged = torch.empty(b * n, width, dtype=patches.dtype)
        arranged[places] = patches
        costs, energies = [], []
        for image, (middle, each) in zip(arranged.reshape(b, n, width), rows, strict=True):
            near, energy = each.expected(image - middle)
            energies.append(energy)
            costs.append(each.given.costs(patches, given_squares[id(each)], middle + near))
        unlikely = torch.stack(energies)
        return float(unlikely.mean()), home_costs + torch.cat(costs, 1), Arranged(places, unlikely)

    first = [
        each.alone.costs(patches, alone_squares[id(each)], middle + each.mean)
        for middle, each in rows
    ]
    return settled(home_costs + torch.cat(first, 1), look, TURNS)


def home_of(rows: int, patches: int, kept_patches: int) -> Tensor:
    """Return log-probabilities (b N, b) that the patch of a slot is from a row.

    Parameters
    ----------
    rows, patches, kept_patches
        Rows b of a batch, patches N of a row, and how many of its own a row keeps.
    """
    moved = (1 - kept_patches / patches) / rows
    home = torch.full((rows, rows), moved, dtype=torch.float64)
    home += (kept_patches / patches) * torch.eye(rows, dtype=torch.float64)
    return home.clamp_min(1e-12).log().repeat_interleave(patches, 0)
