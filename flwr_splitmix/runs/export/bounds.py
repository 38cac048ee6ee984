"""Bounds on the model that a description asks for: it cannot be larger than its weights' files.

Whatever sizes a description has, nothing is allocated for a model that its files cannot fill. No
model with weights that are NaN or infinite is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.overrides import TorchFunctionMode

from flwr_splitmix.finite import not_finite_in
from flwr_splitmix.runs.export.folder import unreadable
from flwr_splitmix.words import gib

_BUFFERS = 2**28
"""Further bytes that a model may need, for buffers that no file holds, such as masks."""


@dataclass(frozen=True)
class Weights:
    """The files of weights in a folder: how many arrays they hold, and their bytes."""

    arrays: int
    nbytes: int

    @classmethod
    def in_folder(cls, folder: Path) -> Weights:
        """Count the arrays and bytes of the files in a folder.

        Raises
        ------
        ExportError
            If a file cannot be read.
        """
        arrays = nbytes = 0
        for file in folder.glob("*.safetensors"):
            try:
                with safe_open(str(file), framework="pt") as tensors:
                    arrays += len(tensors.keys())
                nbytes += file.stat().st_size
            except (OSError, SafetensorError) as error:
                raise unreadable(file, error) from error
        return cls(arrays, nbytes)

    def check_layers(self, file: Path, key: str, layers: object) -> None:
        """Raise ExportError if a file asks for more layers than there are arrays."""
        if isinstance(layers, int) and layers > self.arrays:
            raise unreadable(
                file, f"{key} is {layers!r:.80}, but there are {self.arrays} arrays of weights"
            )

    def check_fills(self, file: Path, blank: nn.Module) -> None:
        """Raise ExportError if a model on the meta device, made by a file's values, is larger."""
        tensors = [*blank.parameters(), *blank.buffers()]
        needed = sum(tensor.nbytes for tensor in tensors)
        if needed > self.nbytes + _BUFFERS:
            raise unreadable(
                file,
                f"its sizes are those of a model of {gib(needed)}, but the weights beside it have "
                f"{gib(self.nbytes)}",
            )


def check_finite(model: nn.Module, where: Path) -> None:
    """Raise ExportError if weights of a model, read from a file or folder, are NaN or infinite."""
    if name := not_finite_in(model):
        raise unreadable(where, f"its weights {name} have NaN or infinite numbers")


class _RatesOnCpu(TorchFunctionMode):
    """Numbers from `linspace` have values: timm reads its rates of dropping blocks from them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is torch.linspace:
            options = {"device": "cpu", **options}
        return func(*args, **options)


@contextmanager
def without_memory() -> Iterator[None]:
    """Make modules on the meta device, without memory for weights."""
    with torch.device("meta"), _RatesOnCpu():
        yield
