"""The lower segment that a run begins with, checked before its first round."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord

from flwr_splitmix.server.aggregation.nodes import AggregatorError
from flwr_splitmix.words import described

_NEEDED = "ArrayRecord(lower.state_dict())"


def check_first_arrays(arrays: object, *, averages: bool, given: bool) -> None:
    """Refuse what cannot be the first lower segment.

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
        If lower segments are averaged, and it is empty, or has arrays that no average is of.
    """
    if not isinstance(arrays, ArrayRecord):
        raise TypeError(f"initial_arrays is {described(arrays)}; needed is {_NEEDED}")
    if not averages:
        return
    if not arrays:
        nothing = "the clients have no weights that could be averaged;"
        if given:
            nothing = (
                "initial_arrays is empty, and a strategy that averages needs the first lower "
                f"segment: {_NEEDED}; for one without weights"
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
