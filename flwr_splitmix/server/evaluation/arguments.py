"""Checks of the arguments of central evaluation, as early as possible."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

from flwr.app import ArrayRecord
from torch import nn

from flwr_splitmix.clients import ClientError
from flwr_splitmix.clients.weights import check_fits
from flwr_splitmix.data.examples import check_map_style
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.server.segments.upper import TrainedUpper


def check_central(upper: Any, lower: Any, data: Any) -> None:
    """Raise an error for arguments of `central_evaluation` that do not fit together.

    Raises
    ------
    TypeError
        If one is of another kind; the message has its name and the expected kind.
    ValueError
        If `lower` shares weights or buffers with `upper`: weights loaded into it would replace
        the upper segment's.
    """
    if not isinstance(upper, TrainedUpper):
        raise TypeError(
            f"upper is {type(upper).__name__}; expected the strategy's server segment, "
            "strategy.upper"
        )
    if not isinstance(lower, nn.Module):
        raise TypeError(
            f"lower is {type(lower).__name__}; expected a module like the clients' lower segment"
        )
    check_map_style("data", data)
    of_upper = {id(tensor) for tensor in chain(upper.module.parameters(), upper.module.buffers())}
    if any(id(tensor) in of_upper for tensor in lower.state_dict(keep_vars=True).values()):
        raise ValueError(
            "lower shares weights with the upper segment, which would be evaluated with the "
            "clients' instead of its own; give central_evaluation a lower segment of its own: "
            "copy.deepcopy(lower)"
        )


@contextmanager
def loaded(lower: nn.Module, arrays: ArrayRecord) -> Iterator[None]:
    """Give a lower segment the clients' weights within the block, and its own back afterwards.

    It may be a client's own, which must keep what it has learned.

    Raises
    ------
    ValueError
        If names or shapes differ.
    """
    state, weights = lower.state_dict(), to_tensors(arrays)
    try:
        check_fits(state, weights, "the clients' lower segment does not fit central_evaluation's")
    except ClientError as error:
        raise ValueError(str(error)) from error
    backup = {name: tensor.clone() for name, tensor in state.items()}
    lower.load_state_dict({name: weights[name].to(t.dtype) for name, t in state.items()})
    try:
        yield
    finally:
        lower.load_state_dict(backup)
