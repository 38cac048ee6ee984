"""Feature maps as a grid of cells, so that a CNN's smashed data are patches like a ViT's."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from flwr_splitmix.segments.geometry import Geometry
from flwr_splitmix.segments.vision.split_model import (
    Cuttable,
    LowerSegment,
    Request,
    SplitModel,
    Stage,
    UpperSegment,
)


class MapToCells(nn.Module):
    """Map from (b, C, H, W) to cells (b, N, C cell²), row by row; N = (H / cell) (W / cell)."""

    def __init__(self, cell: int) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, maps: Tensor) -> Tensor:  # noqa: D102
        b, channels, height, width = maps.shape
        side = self.cell
        cells = maps.reshape(b, channels, height // side, side, width // side, side)
        return cells.permute(0, 2, 4, 1, 3, 5).reshape(b, -1, channels * side**2)


class CellsToMap(nn.Module):
    """The inverse of `MapToCells`."""

    def __init__(self, grid: tuple[int, int], cell: int) -> None:
        super().__init__()
        self.grid = grid
        self.cell = cell

    def forward(self, cells: Tensor) -> Tensor:  # noqa: D102
        (rows, columns), side = self.grid, self.cell
        maps = cells.reshape(cells.shape[0], rows, columns, -1, side, side).permute(
            0, 3, 1, 4, 2, 5
        )
        # The memory layout of the whole model's maps; with others, convolutions round differently.
        return maps.reshape(cells.shape[0], -1, rows * side, columns * side).contiguous()


def split_at_map(request: Request, stages: Sequence[Stage], at: int) -> SplitModel:
    """Cut a CNN after `at` stages and treat the feature map there as cells.

    Raises
    ------
    ValueError
        If the cell size does not divide the map's height and width.
    """
    below = nn.Sequential(*(module for _, module in stages[:at])).eval()
    with torch.no_grad():
        _, channels, height, width = below(torch.zeros(1, *request.input_shape)).shape
    below.train()
    cell = request.cell
    allowed = [c for c in range(1, min(height, width) + 1) if height % c == 0 == width % c]
    if cell not in allowed:
        raise ValueError(
            f"cell {cell} does not divide the {height} x {width} map of {request.name} "
            f"at this cut; allowed are {', '.join(map(str, allowed))}"
        )
    grid = (height // cell, width // cell)
    geometry = Geometry(grid[0] * grid[1], channels * cell**2, grid=grid, positions="none")
    return SplitModel(
        LowerSegment([*stages[:at], ("cells", MapToCells(cell))], request.input_shape, geometry),
        UpperSegment(
            [("map", CellsToMap(grid, cell)), *_not_in_place(stages[at:])],
            geometry,
            request.num_classes,
        ),
    )


def open_cnn(
    request: Request, stages: Sequence[Stage], cuts: Mapping[str, int], default: str
) -> Cuttable:
    """Return a CNN as stages that can be cut."""
    return Cuttable(request, stages, cuts, default, lambda at: split_at_map(request, stages, at))


def _not_in_place(stages: Sequence[Stage]) -> list[Stage]:
    """Return stages whose first does not overwrite smashed data, whose gradient is needed."""
    (name, first), *others = stages
    if getattr(first, "inplace", False):
        first = copy.copy(first)  # an activation; other cuts share the original
        first.inplace = False  # type: ignore[assignment]
    return [(name, first), *others]
