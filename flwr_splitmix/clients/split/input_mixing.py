"""Mixing a client's raw inputs, divided into cells, with those of others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

from torch import Tensor

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.data.examples import Example
from flwr_splitmix.mixers import InputShare, WeightedShare

log = logging.getLogger("flwr.splitmix")


def mix_inputs(share: InputShare, batch_of: Callable[[int], Example]) -> Example:
    """Return a client's mixed inputs and soft labels.

    Parameters
    ----------
    batch_of
        Returns a client's batch of this step: inputs (b, C, H, W), cells (b, N, width), series
        (b, C, length) if the cells are one row and not C, vectors (b, F), or of any shape if they
        are one cell; and labels int64 (b,).

    Returns
    -------
    Inputs of the same shape as the client's own, and soft labels (b, L).

    Raises
    ------
    ClientError
        If the inputs cannot be divided into the cells of the plan, or are integers that are to be
        weighted.
    """
    batches = {client: batch_of(client) for client, _ in share.parts}
    own_inputs = batches[share.parts[0][0]][0]
    weights = any(isinstance(part, WeightedShare) for _, part in share.parts)
    if weights and not own_inputs.is_floating_point():
        raise ClientError(
            f"inputs are {str(own_inputs.dtype).removeprefix('torch.')}, but a weighted sum needs "
            "floats: convert them in the data set with .float(), or take a method that cuts "
            "inputs, such as InputCutMixSL"
        )
    rows, columns = share.rows, share.columns
    cells = {client: _to_cells(inputs, rows, columns) for client, (inputs, _) in batches.items()}
    mixed, soft = share.mix(cells, {client: labels for client, (_, labels) in batches.items()})
    if _is_series(own_inputs, rows, columns):
        mixed = mixed.reshape(len(own_inputs), columns, own_inputs.shape[1], -1).permute(0, 2, 1, 3)
    elif own_inputs.ndim == 4:
        batch, channels, height, width = own_inputs.shape
        mixed = mixed.reshape(batch, rows, columns, channels, height // rows, width // columns)
        mixed = mixed.permute(0, 3, 1, 4, 2, 5)
    return mixed.reshape(own_inputs.shape), soft


def _to_cells(inputs: Tensor, rows: int, columns: int) -> Tensor:
    """Return inputs as cells (b, rows * columns, width).

    Those of images are rectangles, and those of series have a part of each channel.
    """
    count, (batch, *shape) = rows * columns, inputs.shape
    if len(shape) == 3 and shape[1] % rows == 0 and shape[2] % columns == 0:
        channels, height, width = shape
        divided = inputs.reshape(batch, channels, rows, height // rows, columns, width // columns)
        return divided.permute(0, 2, 4, 1, 3, 5).reshape(batch, count, -1)
    if _is_series(inputs, rows, columns):
        channels, length = shape
        divided = inputs.reshape(batch, channels, columns, length // columns)
        return divided.permute(0, 2, 1, 3).reshape(batch, columns, -1)
    divided_already = len(shape) == 2 and shape[0] == count
    if divided_already and count > 1:
        _warn_of_channels(rows, columns, shape[1])
    if count == 1 or divided_already or (len(shape) == 1 and shape[0] % count == 0):
        return inputs.reshape(batch, count, -1)
    raise ClientError(
        f"inputs of shape {tuple(shape)} cannot be divided into {rows} x {columns} equal cells: "
        + (
            "series (channels, length) take the strategy's grid=(1, columns), where columns "
            "divides the length"
            if len(shape) == 2
            else "the grid of patches must divide them, or the strategy's grid=(rows, columns)"
        )
    )


def _is_series(inputs: Tensor, rows: int, columns: int) -> bool:
    """Return whether inputs are series (b, C, length) that one row of cells divides.

    Inputs of as many rows as there are cells are divided already: nothing distinguishes series of
    as many channels from them.
    """
    if inputs.ndim != 3 or rows != 1 or inputs.shape[1] == columns:
        return False
    return inputs.shape[2] % columns == 0


@cache
def _warn_of_channels(rows: int, columns: int, width: int) -> None:
    """Warn, once for a shape, that what may be channels of series are mixed as whole cells."""
    count = rows * columns
    log.warning(
        "inputs of shape (%d, %d) are mixed as %d cells of %d numbers, since grid=(%d, %d) has as "
        "many cells; if they are series of %d channels, take grid=(1, columns) with another number "
        "of columns, so that they are divided along their length",
        *(count, width, count, width, rows, columns, count),
    )
