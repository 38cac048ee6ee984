"""Vanilla CutMix: one of two clients fills a box of the patch grid, the other everything else."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.mixers.facts import Regroup
from flwr_splitmix.mixers.grouping import WHOLE_OR_NOT, GroupMixer, Leftover
from flwr_splitmix.mixers.mask_share import MaskShare
from flwr_splitmix.mixers.plan import Member, SmashedShape
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.values import real_number
from flwr_splitmix.words import counted

log = logging.getLogger("flwr.splitmix")


@dataclass(frozen=True, kw_only=True)
class BoxShare(MaskShare):
    """The patches inside, or outside, a box of the patch grid, in raster order.

    Parameters
    ----------
    columns
        Columns of the grid; its patches are numbered row by row.
    top, bottom, left, right
        The box holds rows `top` to `bottom` - 1 and columns `left` to `right` - 1.
    inside
        Whether the client keeps the box (True) or everything outside it (False).
    """

    name: ClassVar[str] = "box"
    columns: int
    top: int
    bottom: int
    left: int
    right: int
    inside: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.columns < 1 or self.patches % self.columns:
            raise ValueError(
                f"{counted(self.patches, 'patch')} form no rows of "
                f"{counted(self.columns, 'column')}"
            )
        rows = self.patches // self.columns
        if not (0 <= self.top <= self.bottom <= rows and 0 <= self.left <= self.right):
            raise ValueError(f"box rows {self.top}:{self.bottom} are not within {rows}")
        if self.right > self.columns:
            raise ValueError(f"box columns {self.left}:{self.right} are not within {self.columns}")

    def positions(self, batch: int) -> Tensor:
        """Return the kept patches, the same for every sample of the batch."""
        box = torch.zeros(self.patches // self.columns, self.columns, dtype=torch.bool)
        box[self.top : self.bottom, self.left : self.right] = True
        return (box if self.inside else ~box).flatten().nonzero().flatten()

    def count(self) -> int:
        """Return the number of kept patches."""
        area = (self.bottom - self.top) * (self.right - self.left)
        return area if self.inside else self.patches - area


class VanillaCutMix(GroupMixer):
    """Boxes on the patch grid, for pairs of clients.

    A ratio is drawn from Beta(a, a); the box has sides floor(side * sqrt(1 - ratio)) around a
    uniform centre, clipped at the border; the mixing ratio of the client outside is the realised
    1 - box / (H W).

    Parameters
    ----------
    k
        Must be 2: a box has one inside and one outside.
    beta
        The a of Beta(a, a), > 0.
    regroup, leftover
        See `GroupMixer`.

    Raises
    ------
    ValueError
        If `k` is not 2 or `beta` <= 0.

    Source: CutMix (Yun et al., 2019), on smashed data: CutMixSL, eq. 10, which is printed with the
    complement of the box.
    """

    def __init__(
        self,
        k: int = 2,
        beta: float = 1.0,
        *,
        regroup: Regroup = "step",
        leftover: Leftover = "send",
    ) -> None:
        if k != 2:
            raise ValueError(
                f"k is {k}; VanillaCutMix mixes pairs, one inside a box and one outside: it "
                "must be 2"
            )
        beta = real_number("beta", beta)
        if not 0 < beta < math.inf:
            raise ValueError(f"beta is {beta}; it must be greater than 0")
        super().__init__(k, regroup=regroup, leftover=leftover)
        self.beta = beta
        self._once = SeenKeys()

    def without_effect(self, patches: int) -> str:
        """Return that a single patch is not mixed."""
        return WHOLE_OR_NOT if patches == 1 else ""

    def mix(
        self, clients: Sequence[int], shape: SmashedShape, rng: np.random.Generator
    ) -> Sequence[Member]:
        """Draw the box; the first client keeps what is outside.

        It warns once if a square grid is only guessed.
        """
        rows, columns = shape.rows_and_columns()
        if shape.grid is None and self._once.add("guess"):
            log.warning(
                "VanillaCutMix takes %s for a grid of %d x %d, as neither segment's geometry "
                "states how they lie; set geometry = Geometry(patches, width, grid=(rows, "
                "columns)) on the lower segment",
                counted(shape.patches, "patch"),
                rows,
                columns,
            )
        height, width = _sides(rows, columns, 1 - rng.beta(self.beta, self.beta))
        top, bottom = _span(rows, height, int(rng.integers(rows)))
        left, right = _span(columns, width, int(rng.integers(columns)))
        box = (bottom - top) * (right - left) / (rows * columns)
        return [
            Member(
                client,
                BoxShare(
                    lam=box if inside else 1 - box,
                    patches=shape.patches,
                    prefix=shape.prefix,
                    columns=columns,
                    top=top,
                    bottom=bottom,
                    left=left,
                    right=right,
                    inside=inside,
                ),
            )
            for client, inside in zip(clients, (False, True), strict=True)
        ]


def _sides(rows: int, columns: int, share: float) -> tuple[int, int]:
    """Return height and width of a box with this share of a grid's area, both rounded down.

    It has the grid's proportions, but for a single row or column, where it is a part of it.
    """
    if rows == 1 and columns > 1:
        return 1, int(columns * share)
    if columns == 1 and rows > 1:
        return int(rows * share), 1
    side = math.sqrt(share)
    return int(rows * side), int(columns * side)


def _span(length: int, side: int, centre: int) -> tuple[int, int]:
    """Return start and end (exclusive) of a side around a centre, clipped to the grid."""
    start = centre - side // 2
    return max(start, 0), min(start + side, length)
