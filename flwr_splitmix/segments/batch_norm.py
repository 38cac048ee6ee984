"""Batch normalisation: its weights and buffers by name, and batches too small for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flwr_splitmix.errors import ForeseenError
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


class FewValuesError(ForeseenError, ValueError):
    """Batch normalisation gets one value of each channel in training."""


@contextmanager
def enough_values(part: str) -> Iterator[None]:
    """Name the remedy if batch normalisation gets one value of each channel to measure.

    Parameters
    ----------
    part
        Name of the module in the message: "lower segment", "head".

    Raises
    ------
    FewValuesError
        With the remedy, in place of torch's error.
    """
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise FewValuesError(
            f"batch normalisation in the {part} needs more than one value of each "
            "channel, and gets one from a batch of one example: take batches of two or more, or "
            "layers that work on single examples (GroupNorm)"
        ) from error
