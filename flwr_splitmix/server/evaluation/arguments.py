"""Checks of what central evaluation is made of, in words and as early as possible."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from torch import nn

from flwr_splitmix.clients import ClientError
from flwr_splitmix.clients.lower import check_fits
from flwr_splitmix.data.batches import check_map_style
from flwr_splitmix.links.ticket import to_tensors
from flwr_splitmix.server.segments.upper import ServerSegment

Evaluate = Callable[[int, ArrayRecord], MetricRecord]


def check_central(upper: Any, lower: Any, data: Any) -> None:
    """Refuse arguments of `central_evaluation` of other kinds.

    Raises
    ------
    TypeError
        With the name of the argument, and what is needed.
    """
    if not isinstance(upper, ServerSegment):
        raise TypeError(
            f"upper is {type(upper).__name__}; needed is the strategy's server segment, "
            "strategy.upper"
        )
    if not isinstance(lower, nn.Module):
        raise TypeError(
            f"lower is {type(lower).__name__}; needed is a module like the clients' lower segment"
        )
    check_map_style("data", data)


def loads_into(lower: nn.Module) -> Callable[[Evaluate], Evaluate]:
    """Make an evaluation say in words that the clients' weights do not fit its lower segment."""

    def checked(evaluate: Evaluate) -> Evaluate:
        @wraps(evaluate)
        def check_first(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            what = "central_evaluation's lower segment must be like the clients'"
            try:
                check_fits(lower.state_dict(), to_tensors(arrays), what)
            except ClientError as error:
                raise ValueError(str(error)) from error
            return evaluate(server_round, arrays)

        return check_first

    return checked
