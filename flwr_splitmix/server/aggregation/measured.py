"""Arrays that are not weights: statistics, whole numbers and masks, which are averaged."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray

from flwr_splitmix.segments.batch_norm import is_measured, is_variance

log = logging.getLogger("flwr.splitmix")

_EXACT = 2**53
"""Beyond it not every whole number is a float64, in which averages are computed."""


@dataclass(frozen=True)
class WholeNumbers:
    """An array of integers or truth values, as clients sent it.

    Parameters
    ----------
    values
        The first client's array, of any shape.
    kept
        Which of the values stay as they are, whatever an aggregator makes of them: bool, of the
        array's shape.
    inexact
        Whether others are beyond 2^53, so that no average of them is exact.
    """

    values: NDArray[Any]
    kept: NDArray[np.bool_]
    inexact: bool

    def rounded(self, aggregated: Array) -> Array:
        """Return what an aggregator made of the array, rounded to whole numbers of its dtype.

        An average of equal indices can lie just below them.
        """
        numbers = to_whole(aggregated.numpy(), self.values.dtype)
        return Array(np.asarray(np.where(self.kept, self.values, numbers)))


def to_whole(numbers: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Round numbers to whole ones of a dtype of integers or truth values, within its limits."""
    rounded = np.asarray(np.rint(numbers.astype(np.float64)))
    if dtype.kind != "b":
        limits = np.iinfo(dtype)
        most = float(limits.max)
        most = most if most <= limits.max else np.nextafter(most, 0)
        rounded = np.clip(rounded, limits.min, most)
    return np.asarray(rounded.astype(dtype))  # clip makes a number of a 0-d array


def whole_numbers(
    replies: Sequence[Message], known: Mapping[str, Array] | None = None
) -> dict[str, WholeNumbers]:
    """Return the arrays of integers and truth values in replies, by name.

    Those of their values that all clients sent alike are kept.

    Parameters
    ----------
    known
        The round's first arrays, if only values equal to those are kept; None keeps all.
    """
    segments = [_arrays(reply) for reply in replies]
    whole = {}
    for name, array in segments[0].items():
        if np.dtype(array.dtype).kind in "biu":
            arrays = [segment[name].numpy() for segment in segments]
            kept = np.all([values == arrays[0] for values in arrays], axis=0)
            if known is not None:
                kept &= name in known and known[name].numpy() == arrays[0]
            inexact = any(_inexact(values[~kept]) for values in arrays)
            whole[name] = WholeNumbers(arrays[0], kept, inexact)
    return whole


def _inexact(values: NDArray[Any]) -> bool:
    return bool(((values > _EXACT) | (values < -_EXACT)).any())


def warn_of_inexact(whole: Mapping[str, WholeNumbers]) -> bool:
    """Warn of whole numbers too large for an exact average; return whether there are any."""
    names = [repr(name) for name, numbers in whole.items() if numbers.inexact]
    if names:
        log.warning(
            "the clients send whole numbers beyond 2^53 in %s that are not the same for all of "
            "them, and no average of such numbers is exact; where they are not quantities, as "
            "hashes are not, give every client the same",
            ", ".join(names),
        )
    return bool(names)


def means_of_measured(
    replies: Sequence[Message], whole: Collection[str], weighted_by: str
) -> dict[str, Array]:
    """Return the weighted means of arrays that are not weights; `whole` names the integers.

    There are none if clients report weights that allow no mean: an aggregator that weights by
    them refuses them, too.

    Parameters
    ----------
    weighted_by
        Name of the metric that is a client's weight.
    """
    segments = [_arrays(reply) for reply in replies]
    metrics = [next(iter(reply.content.metric_records.values())) for reply in replies]
    weights = [n for record in metrics if isinstance(n := record.get(weighted_by), (int, float))]
    if len(weights) < len(segments) or not sum(weights):
        return {}
    return {
        name: Array(
            np.asarray(
                np.average([segment[name].numpy() for segment in segments], axis=0, weights=weights)
            )
        )
        for name in segments[0]
        if is_measured(name)
        or name in whole
        or not np.isfinite(segments[0][name].numpy()).all()  # a mask of -inf, which has no update
    }


def has_statistics(reply: Message) -> bool:
    """Return whether a reply has what BatchNorm measures."""
    return any(is_measured(name) for name in _arrays(reply))


def without_negative_variances(name: str, array: Array) -> Array:
    """Return a running variance with 0 where noise or a server's step made it negative."""
    if not is_variance(name):
        return array
    return Array(np.maximum(array.numpy(), 0))


def with_whole_numbers(
    arrays: Mapping[str, Array], whole: Mapping[str, WholeNumbers]
) -> ArrayRecord:
    """Return aggregated arrays; those named in `whole` are whole numbers again."""
    rounded = {
        name: numbers.rounded(arrays[name]) for name, numbers in whole.items() if name in arrays
    }
    return ArrayRecord({**arrays, **rounded})


def unchanged(replies: Sequence[Message], known: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays with which a round began and which all clients sent back bit for bit.

    Frozen weights and constants are such. Their average is rounded, and a server optimizer that
    divides by small squared steps magnifies the error.
    """
    segments = [_arrays(reply) for reply in replies]
    return {
        name: array
        for name, array in known.items()
        if all(
            name in segment
            and segment[name].dtype == array.dtype
            and segment[name].data == array.data
            for segment in segments
        )
    }


def _arrays(reply: Message) -> ArrayRecord:
    return next(iter(reply.content.array_records.values()))
