"""The lower segment that a run starts from: chosen for a `fit`, and checked."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from flwr_splitmix.clients import Client
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.server.aggregation.nodes import AggregatorError
from flwr_splitmix.words import described

log = logging.getLogger("flwr.splitmix")

_EXPECTED = "ArrayRecord(lower.state_dict())"


def check_initial_arrays(arrays: object, *, averages: bool, given: bool) -> None:
    """Raise an error for anything that cannot be a run's initial lower segment.

    Parameters
    ----------
    averages
        Whether lower segments are averaged: then there must be weights, of real numbers.
    given
        Whether it is the argument `initial_arrays`; if not, it was taken from a client.

    Raises
    ------
    TypeError
        If it is not an ArrayRecord.
    AggregatorError
        If lower segments are averaged, and it is empty, or has arrays that cannot be averaged.
    """
    if not isinstance(arrays, ArrayRecord):
        raise TypeError(f"initial_arrays is {described(arrays)}; expected {_EXPECTED}")
    if not averages:
        return
    if not arrays:
        nothing = "the clients have no weights that could be averaged;"
        if given:
            nothing = (
                "initial_arrays is empty, and a strategy that averages needs the first lower "
                f"segment: {_EXPECTED}; for one without weights"
            )
        raise AggregatorError(
            f"{nothing} take a strategy that does not average, such as CutMixSL instead of "
            "CutMixSFL, or USplitSL instead of USplitFL, or no aggregator"
        )
    for name, array in arrays.items():
        if np.dtype(array.dtype).kind not in "biuf":
            raise AggregatorError(
                f"the clients' weights {name!r} are {array.dtype}, which cannot be averaged; "
                "keep its real and imaginary parts, or take a strategy that does not average"
            )


def initial_arrays_of_fit(
    given: ArrayRecord | None, clients: Sequence[Client], *, averages: bool
) -> ArrayRecord:
    """Return the lower segment that all clients of a `fit` start from; empty: their own.

    If none is given, it is taken from a client: from the first one whose weights have the most
    common names and shapes. So one client that trains only its tail does not decide for all. If
    this replaces other clients' weights, a warning is logged.

    Parameters
    ----------
    averages
        Whether the lower segments are averaged.
    """
    if given is not None:
        return given
    forms = [_form(client.weights()) for client in clients]
    index = forms.index(Counter(forms).most_common(1)[0][0])
    weights = clients[index].weights()
    if not averages and any(_differ(weights, c.weights()) for c in clients):
        log.warning(
            "all clients start from client %d's weights, which replace theirs; "
            "initial_arrays=ArrayRecord() lets each start from its own",
            index,
        )
    return to_arrays(weights)


def _form(weights: Mapping[str, Tensor]) -> frozenset[tuple[str, torch.Size]]:
    """Return the names and shapes of weights."""
    return frozenset((name, tensor.shape) for name, tensor in weights.items())


def _differ(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether two lower segments have other weights."""
    return one.keys() != other.keys() or not all(
        one[name].shape == other[name].shape and torch.equal(one[name], other[name]) for name in one
    )
