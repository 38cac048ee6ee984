"""Named tensors as Flower's ArrayRecords, and back."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

_READING = threading.Lock()
"""Serialises reads of arrays: numpy parses headers with `ast`, which is not thread-safe in
CPython 3.11."""


def to_arrays(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Convert named tensors to an ArrayRecord."""
    return ArrayRecord({name: Array(t.detach().cpu().numpy()) for name, t in tensors.items()})


def to_numpy(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    """Convert an ArrayRecord to named arrays; thread-safe despite CPython's gh-106905."""
    with _READING:
        return {name: array.numpy() for name, array in arrays.items()}


def to_tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    """Convert an ArrayRecord to named tensors that own their memory."""
    return {name: torch.tensor(array) for name, array in to_numpy(arrays).items()}
