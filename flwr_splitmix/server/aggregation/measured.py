"""Arrays that are no weights: statistics, whole numbers and masks, which are averaged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, Message

from flwr_splitmix.clients.requests import is_variance

_STATISTICS = {"running_mean", "running_var", "num_batches_tracked"}
"""Last parts of the names of what BatchNorm has measured."""


def whole_numbers(reply: Message) -> dict[str, np.dtype[Any]]:
    """Return the dtypes of a reply's arrays of integers and truth values, by name."""
    dtypes = {name: np.dtype(array.dtype) for name, array in _arrays(reply).items()}
    return {name: dtype for name, dtype in dtypes.items() if dtype.kind in "biu"}


def means_of_measured(replies: Sequence[Message], whole: Collection[str]) -> dict[str, Array]:
    """Return the means, weighted by examples, of what is no weight; `whole` names integers."""
    sent = [_arrays(reply) for reply in replies]
    weights = [
        cast(int, next(iter(reply.content.metric_records.values()))["num-examples"])
        for reply in replies
    ]
    return {
        name: Array(
            np.asarray(np.average([own[name].numpy() for own in sent], axis=0, weights=weights))
        )
        for name in sent[0]
        if name.rpartition(".")[2] in _STATISTICS
        or name in whole
        or not np.isfinite(sent[0][name].numpy()).all()  # a mask of -inf, which has no update
    }


def has_statistics(reply: Message) -> bool:
    """Return whether a reply has what BatchNorm measures."""
    return any(name.rpartition(".")[2] in _STATISTICS for name in _arrays(reply))


def without_negative_variances(name: str, array: Array) -> Array:
    """Return a running variance with 0 where noise or a server's step made it negative."""
    if not is_variance(name):
        return array
    return Array(np.maximum(array.numpy(), 0))


def with_whole_numbers(
    arrays: Mapping[str, Array], dtypes: Mapping[str, np.dtype[Any]]
) -> ArrayRecord:
    """Return aggregated arrays with those named in `dtypes` rounded to these dtypes.

    An average of equal indices can lie just below them.
    """
    whole = {
        name: Array(np.asarray(np.rint(arrays[name].numpy().astype(np.float64))).astype(dtype))
        for name, dtype in dtypes.items()
        if name in arrays
    }
    return ArrayRecord({**arrays, **whole})


def _arrays(reply: Message) -> ArrayRecord:
    return next(iter(reply.content.array_records.values()))
