"""Feature maps as a grid of cells, so that a CNN's smashed data are patches like a ViT's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.segments.modules import not_in_place
from flwr_splitmix.segments.vision.black_image import computing
from flwr_splitmix.segments.vision.split_model import (
    Cuttable,
    LowerSegment,
    Request,
    SplitModel,
    Stage,
    UpperSegment,
)


class SlotFree(NamedTuple):
    """The last cut below which no layer knows the slots of patches; 0 stages: there is none."""

    cut_at: str
    stages: int


class MapToCells(nn.Module):
    """Map from (b, C, H, W) to cells (b, N, C cell²), row by row; N = (H / cell) (W / cell).

    With `channels_last` from (b, H, W, C).
    """

    def __init__(self, cell: int, *, channels_last: bool = False) -> None:
        super().__init__()
        self.cell = cell
        self.channels_last = channels_last

    def forward(self, maps: Tensor) -> Tensor:  # noqa: D102
        if self.channels_last:
            maps = maps.permute(0, 3, 1, 2)
        b, channels, height, width = maps.shape
        side = self.cell
        cells = maps.reshape(b, channels, height // side, side, width // side, side)
        return cells.permute(0, 2, 4, 1, 3, 5).reshape(b, -1, channels * side**2)


class MapToTokens(nn.Module):
    """Map from (b, C, H, W) to tokens (b, N, C), row by row; N = H W."""

    def forward(self, maps: Tensor) -> Tensor:  # noqa: D102
        return maps.flatten(2).transpose(1, 2)


class CellsToMap(nn.Module):
    """The inverse of `MapToCells`; `memory` is the layout of its maps in memory."""

    def __init__(
        self,
        grid: tuple[int, int],
        cell: int,
        *,
        channels_last: bool = False,
        memory: torch.memory_format = torch.contiguous_format,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.cell = cell
        self.channels_last = channels_last
        self.memory = memory

    def forward(self, cells: Tensor) -> Tensor:  # noqa: D102
        (rows, columns), side = self.grid, self.cell
        maps = cells.reshape(cells.shape[0], rows, columns, -1, side, side).permute(
            0, 3, 1, 4, 2, 5
        )
        maps = maps.reshape(cells.shape[0], -1, rows * side, columns * side)
        maps = maps.permute(0, 2, 3, 1) if self.channels_last else maps
        return maps.contiguous(memory_format=self.memory)


def split_at_map(
    request: Request,
    stages: Sequence[Stage],
    at: int,
    *,
    channels_last: bool = False,
    slot_free: SlotFree | None = None,
) -> SplitModel:
    """Cut a CNN after `at` stages and treat the feature map there as cells.

    Tokens (b, N, C) stay as they are.

    Parameters
    ----------
    channels_last
        Whether the map is (b, H, W, C).
    slot_free
        The last cut below which no layer knows the slots of patches; None: there is no such layer.

    Raises
    ------
    ValueError
        If the cell size does not divide the map's height and width, the model cannot compute
        images of this size, or the upper segment would have to add positions that the stages below
        have used.
    """
    maps = _computed(request, stages, at)
    unmixed_at = slot_free.cut_at if slot_free is not None and at > slot_free.stages else None
    if unmixed_at is not None and request.positions == "upper":
        raise ValueError(_knows_slots(request.name, unmixed_at))
    positions: Literal["lower", "none"] = "none" if unmixed_at is None else "lower"
    if maps.dim() == 3:
        return _split_at_tokens(request, stages, at, maps, positions, unmixed_at or "")
    sides = tuple(maps.shape[1:])
    channels, height, width = (sides[-1], *sides[:-1]) if channels_last else sides
    cell = request.cell
    allowed = [c for c in range(1, min(height, width) + 1) if height % c == 0 == width % c]
    if cell not in allowed:
        raise ValueError(
            f"cell {cell} does not divide the {height} x {width} map of {request.name} "
            f"at this cut; it must be one of {', '.join(map(str, allowed))}"
        )
    grid = (height // cell, width // cell)
    geometry = Geometry(grid[0] * grid[1], channels * cell**2, grid=grid, positions=positions)
    back = CellsToMap(grid, cell, channels_last=channels_last, memory=_memory_of(maps))
    upper = UpperSegment([("map", back), *_keeping(stages[at:])], geometry, request.num_classes)
    upper.unmixed_at = unmixed_at or ""
    return SplitModel(
        LowerSegment(
            [*stages[:at], ("cells", MapToCells(cell, channels_last=channels_last))],
            request.input_shape,
            geometry,
        ),
        upper,
    )


def _knows_slots(name: str, unmixed_at: str) -> str:
    """Return the error message for patches to be moved that have left their slots' marks."""
    where = f"the cut at {unmixed_at!r} (cut_at={unmixed_at!r})" if unmixed_at else "another model"
    behind = " behind that cut" if unmixed_at else ""
    return (
        f"positions 'upper' needs {where}: {name} has no position embeddings that the upper "
        f"segment could add, and its layers{behind} add positions to patches or mix them by "
        "their slots; a ViT, cut at its embedding, has such embeddings"
    )


def _split_at_tokens(
    request: Request,
    stages: Sequence[Stage],
    at: int,
    tokens: Tensor,
    positions: Literal["lower", "none"],
    unmixed_at: str,
) -> SplitModel:
    """Cut a model without prefix tokens after `at` stages, where it returns `tokens` (1, N, d)."""
    _, patches, width = tokens.shape
    side = math.isqrt(patches)
    grid = (side, side) if side**2 == patches else None
    geometry = Geometry(patches, width, grid=grid, positions=positions)
    upper = UpperSegment(_keeping(stages[at:]), geometry, request.num_classes)
    upper.unmixed_at = unmixed_at
    return SplitModel(LowerSegment(stages[:at], request.input_shape, geometry), upper)


@torch.no_grad()
def _computed(request: Request, stages: Sequence[Stage], at: int) -> Tensor:
    """Return the map of a black image after `at` stages; the other stages are tried, too."""
    whole = nn.Sequential(*(module for _, module in stages)).eval()
    try:
        with computing(request):
            maps: Tensor = whole[:at](torch.zeros(1, *request.input_shape))
            whole[at:](maps)
    finally:
        whole.train()
    return maps


def _memory_of(maps: Tensor) -> torch.memory_format:
    """Return how maps lie in memory: with another layout, convolutions would round differently."""
    last = maps.is_contiguous(memory_format=torch.channels_last) and not maps.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


def open_cnn(
    request: Request,
    stages: Sequence[Stage],
    cuts: Mapping[str, int],
    default: str,
    *,
    channels_last: bool = False,
    slot_free: SlotFree | None = None,
) -> Cuttable:
    """Return a CNN as stages that can be cut; the options are those of `split_at_map`."""
    split = partial(split_at_map, request, stages, channels_last=channels_last, slot_free=slot_free)
    return Cuttable(request, stages, cuts, default, split)


def _keeping(stages: Sequence[Stage]) -> list[Stage]:
    """Return stages whose first does not overwrite smashed data, whose gradient is needed."""
    (name, first), *others = stages
    return [(name, not_in_place(first)), *others]
