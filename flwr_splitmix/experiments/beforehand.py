"""The common needs of a grid's cells, data set and device, checked before the first cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from flwr_splitmix.data.images.sources import check_there
from flwr_splitmix.device import pick_device
from flwr_splitmix.experiments.cells import Cell, ExperimentError
from flwr_splitmix.experiments.grid import Workplace
from flwr_splitmix.experiments.privacy.cells import Place


def check_cells(cells: Sequence[Cell], place: Workplace) -> None:
    """Check that the data set and the device of cells are there.

    Raises
    ------
    ExperimentError
        If one is not; the message is its reader's own.
    """
    with _checking(place.device):
        corpora = set()
        for cell in cells:
            corpus = None if cell.recipe.texts is None else cell.recipe.texts.corpus
            if corpus in corpora:
                continue
            corpora.add(corpus)
            if corpus is None:
                check_there(place.source)
            else:
                from flwr_splitmix.experiments.texts.data import check_texts

                check_texts(cell, place.source)


def check_matrix(place: Place) -> None:
    """Check that the data set and the device of a matrix are there, as `check_cells` does."""
    with _checking(place.device):
        if place.matrix.name == "images":
            check_there(place.source)
        else:
            from flwr_splitmix.experiments.privacy.texts.data import open_sets

            open_sets(place.source)


@contextmanager
def _checking(device: str) -> Iterator[None]:
    """Check the device, then what the block checks; any error becomes an ExperimentError."""
    try:
        _check_device(device)
        yield
    except ValueError as error:  # DataError is one, too
        raise ExperimentError(str(error)) from error


def _check_device(name: str) -> None:
    kind, _, number = name.partition(":")
    if kind == "cuda" and torch.cuda.is_available():
        # A GPU may be for one process only, and cells have their own: allocate nothing on it here.
        number = number or "0"
        if number.isdecimal() and int(number) < torch.cuda.device_count():
            return
    pick_device(name)
