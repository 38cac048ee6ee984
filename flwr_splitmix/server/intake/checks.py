"""Checks shared by both shapes: numbers, tensors and work that clients announce or send."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from flwr_splitmix.finite import all_finite, largest_magnitude
from flwr_splitmix.limits import LARGEST
from flwr_splitmix.links import Clients
from flwr_splitmix.values import MAX_COUNT, wrong_count

NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}")
"""Valid names for a client's own metrics."""

NAME_RULE = "begins with a lower-case letter, and has at most 40 more, digits, '_' or '-'"
"""The rule of `NAME`, in words."""

MAX_MEDIAN_WORK = 100
"""A client's data set counts in full up to this many times the median."""

NOT_FINITE = "uploaded NaN or infinite numbers"

Read = TypeVar("Read")
Answer = TypeVar("Answer")


class UploadError(ValueError):
    """A client has sent something other than what it was asked for."""


class DtypeError(UploadError):
    """A client computes in another dtype than its server.

    Parameters
    ----------
    sent
        The dtype and shape of what it has sent.
    expected
        The expected dtype and shape.
    remedy
        The remedy, in words.
    """

    def __init__(self, sent: Tensor, expected: str, remedy: str) -> None:
        super().__init__(f"uploaded {tuple(sent.shape)} of {sent.dtype}, {expected}; {remedy}")
        self.without_shapes = f"uploaded {sent.dtype}; {remedy}"


def read_each(
    clients: Clients,
    replies: Mapping[int, Mapping[str, Any]],
    read: Callable[[int, Mapping[str, Any]], Read],
) -> dict[int, Read]:
    """Read every client's reply, leaving out clients whose reply raises UploadError."""
    sound: dict[int, Read] = {}
    for client, reply in sorted(replies.items()):
        try:
            sound[client] = read(client, reply)
        except UploadError as error:
            clients.fail(client, str(error))
    return sound


def check_shape(tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise UploadError unless the value is a tensor of that shape and dtype."""
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype or tuple(tensor.shape) != shape:
        expected = f"expected {shape} of {dtype}"
        if not isinstance(tensor, Tensor):
            raise UploadError(f"uploaded {type(tensor).__name__}, {expected}")
        if tensor.dtype == dtype:
            raise UploadError(f"uploaded {tuple(tensor.shape)} of {dtype}, {expected}")
        convert = ".float()" if dtype == torch.float32 else f".to({dtype})"
        if tensor.is_complex() and not dtype.is_complex:
            convert = "torch.view_as_real(output).flatten(-2), which keeps the imaginary parts"
        remedy = (
            "both segments must compute in one dtype: convert the output of the client's with "
            f"{convert}"
        )
        raise DtypeError(tensor, expected, remedy)


def check_tensor(tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise UploadError unless the value is a finite tensor of that shape and dtype."""
    check_shape(tensor, shape, dtype)
    if not all_finite([tensor]):
        raise UploadError(NOT_FINITE)


def check_magnitude(tensor: Tensor) -> None:
    """Raise UploadError if a number is beyond `LARGEST`; waits for the tensor's device."""
    if tensor.numel() and bool(largest_magnitude(tensor) > LARGEST):
        raise UploadError(f"sent numbers beyond {LARGEST:g}, which would overflow in the model")


def check_range(tensor: Tensor, least: float, most: float, noun: str) -> None:
    """Raise UploadError if a number is not in `least`..`most`; waits for the tensor's device.

    Parameters
    ----------
    noun
        Description of the tensor, for the message.
    """
    if not tensor.numel() or (least, most) == (-math.inf, math.inf):
        return
    low, high = map(float, tensor.aminmax())
    if low < least or high > most + 1e-6:
        raise UploadError(f"uploaded {noun} outside {least:g}..{most:g}")


def check_number(noun: str, value: object, least: int, most: int = MAX_COUNT) -> None:
    """Check a whole number that a client reports.

    Raises
    ------
    UploadError
        If it is not an integer, or not in least..most.
    """
    if wrong := wrong_count(value, least, most):
        raise UploadError(f"says that its {noun} {wrong}")


def cap_at_median(sizes: Sequence[int]) -> list[int]:
    """Return data set sizes, or other work, capped at `MAX_MEDIAN_WORK` times the median.

    Reported sizes decide how long all clients work: one that exaggerates must not keep the others
    busy forever.
    """
    if not sizes:
        return []
    most = MAX_MEDIAN_WORK * max(1, statistics.median_low(sizes))  # of two sizes, the smaller
    return [min(size, most) for size in sizes]


def mean_batches(examples: Sequence[int], batch_sizes: Sequence[int]) -> int:
    """Return the mean number of full batches of some clients, at least 1: the steps of an epoch."""
    pairs = zip(cap_at_median(examples), batch_sizes, strict=True)
    return max(1, round(sum(n // size for n, size in pairs) / len(examples)))


def most_common(answers: Iterable[Answer], size: Callable[[Answer], int]) -> Answer:
    """Return the most common of clients' answers; of several as common, the smallest.

    Of two clients, one that exaggerates must not decide how much memory a round needs.

    Raises
    ------
    ValueError
        If there are no answers.
    """
    count = Counter(answers)
    return min(count, key=lambda each: (-count[each], size(each)))


def far_larger(amounts: Mapping[int, int], times: int, *, least: int = 0) -> dict[int, int]:
    """Return the clients whose amount is above so many times the median, each with the median.

    Parameters
    ----------
    least
        Amounts up to this one are never too large.
    """
    if not amounts:
        return {}
    usual = statistics.median_low(amounts.values())  # of two clients, the smaller
    most = max(times * usual, least)
    return {client: usual for client, amount in amounts.items() if amount > most}
