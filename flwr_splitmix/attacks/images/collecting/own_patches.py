"""An image's own patches among those of the batches that it was in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MAX_REPEAT_DIFFERENCE = 1e-3
"""Most that a number of a patch, of pixels from 0 to 1, differs when the patch is read again."""


class Pool(NamedTuple):
    """The patches of one batch that an image was in.

    Parameters
    ----------
    patches
        (b, N, P), in slots.
    row
        The row that the image's own patches began in, and some stay in.
    companions
        Rows of the other images that are in all of the batches, in the same order in each.
    """

    patches: Tensor
    row: int
    companions: Sequence[int] = ()


def own_patches(pools: Sequence[Pool]) -> Tensor:
    """Return the patches that the batches of one image have in common: (N, P), in any order.

    A patch is the image's at most as often as the batch has it that has it least often. Patches
    that all batches have are taken, the rarest first, and of equally rare ones those that most
    often are in the image's row, until there are N: what is in every image, such as a blank
    patch, fills up the rest. Those that are more often in the row of another image that is in all
    of the batches come last.

    Parameters
    ----------
    pools
        At least one; of as many patches N a row each.
    """
    first = pools[0].patches
    n = first.shape[1]
    distinct = _distinct(first.flatten(0, 1))
    least = torch.full((len(distinct),), first.shape[0] * n)
    row_counts = torch.zeros(len(distinct), 1 + len(pools[0].companions), dtype=torch.int64)
    for patches, row, companions in pools:
        same = _are_same(distinct, patches.flatten(0, 1))
        least = torch.minimum(least, same.sum(1))
        row_counts += same.view(len(distinct), -1, n)[:, [row, *companions]].sum(2)

    def turn(patch: int) -> tuple[bool, int, int]:
        at_home, rare = int(row_counts[patch, 0]), int(least[patch])
        others = bool(row_counts[patch, 1:].gt(at_home).any())
        return (others, -at_home, rare) if others else (others, rare, -at_home)

    copies = [i for i in sorted(range(len(distinct)), key=turn) for _ in range(int(least[i]))]
    while len(copies) < n:  # if readings of one patch differ by more than `MAX_REPEAT_DIFFERENCE`
        copies.append(copies[-1] if copies else 0)
    return distinct[copies[:n]]


def _are_same(some: Tensor, others: Tensor) -> Tensor:
    """Return which patches (m, P) are which others (M, P): bool (m, M)."""
    return torch.cdist(some, others, p=torch.inf) < MAX_REPEAT_DIFFERENCE


def _distinct(patches: Tensor) -> Tensor:
    """Return patches (M, P) without those that repeat an earlier one."""
    first = _are_same(patches, patches).to(torch.uint8).argmax(1)
    return patches[torch.unique(first)]
