"""What names of weights and buffers tell of BatchNorm: what it has measured, and how large."""

from __future__ import annotations

from flwr_splitmix.limits import LARGEST


def largest(name: str) -> float:
    """Return the largest number that weights or buffers of this name may have.

    A running variance is a square.
    """
    return LARGEST**2 if is_variance(name) else LARGEST


def is_variance(name: str) -> bool:
    """Return whether a buffer of this name is a running variance of BatchNorm."""
    return name.rpartition(".")[2] == "running_var"


def is_measured(name: str) -> bool:
    """Return whether a buffer of this name is what BatchNorm has measured of data."""
    return name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")
