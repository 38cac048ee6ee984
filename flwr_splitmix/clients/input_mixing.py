"""Mixing a client's raw inputs, divided into cells, with those of others."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.data.batches import Example
from flwr_splitmix.mixers import InputShare
from flwr_splitmix.segments.vision.feature_maps import CellsToMap, MapToCells


def mix_inputs(share: InputShare, batch_of: Callable[[int], Example]) -> Example:
    """Return a client's mixed inputs and soft labels.

    Parameters
    ----------
    batch_of
        Returns a client's batch of this step: inputs (b, C, H, W), cells (b, N, width), or
        vectors (b, F); and labels int64 (b,).

    Returns
    -------
    Inputs of the same shape as the client's own, and soft labels (b, L).

    Raises
    ------
    ClientError
        If the inputs cannot be divided into the cells of the plan.
    """
    batches = {client: batch_of(client) for client, _ in share.parts}
    grid = (share.rows, share.columns)
    own = batches[share.parts[0][0]][0]
    cells = {client: _to_cells(inputs, grid) for client, (inputs, _) in batches.items()}
    mixed, soft = share.mix(cells, {client: labels for client, (_, labels) in batches.items()})
    if own.ndim < 4:
        return mixed.reshape(own.shape), soft
    return CellsToMap(grid, own.shape[2] // share.rows)(mixed), soft


def _to_cells(inputs: Tensor, grid: tuple[int, int]) -> Tensor:
    rows, columns = grid
    if inputs.ndim == 3 and inputs.shape[1] == rows * columns:
        return inputs
    if inputs.ndim == 2 and inputs.shape[1] % (rows * columns) == 0:
        return inputs.reshape(len(inputs), rows * columns, -1)
    if inputs.ndim == 4:
        height, width = inputs.shape[2:]
        cell = height // rows
        if (cell * rows, cell * columns) == (height, width):
            cells: Tensor = MapToCells(cell)(inputs)
            return cells
    kind = "square" if inputs.ndim == 4 else "equal"
    raise ClientError(
        f"inputs of shape {tuple(inputs.shape[1:])} cannot be divided into {rows} x {columns} "
        f"{kind} cells"
        + ("" if inputs.ndim == 4 else ": the strategy's grid=(rows, columns) sets their number")
    )
