"""Checks of what `attach` and `release` return, which a subclass of a client may override."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from flwr_splitmix.clients.client import Client, ClientError
from flwr_splitmix.words import described


def checked_description(client: Client, description: object) -> Mapping[str, Any]:
    """Return what `attach` returned; raises ClientError if it is not a dictionary."""
    if not isinstance(description, Mapping):
        raise ClientError(
            f"attach of {type(client).__name__} returns {described(description)}; expected the "
            "dictionary of plain values that super().attach(order, arrays) returns"
        )
    return description


def checked_release(
    client: Client, pair: object, *, sends: bool
) -> tuple[Mapping[str, Tensor], Mapping[str, int | float]]:
    """Return what `release` returned; the metrics' values are not checked.

    Parameters
    ----------
    sends
        Whether the weights are sent; else they may be anything.

    Raises
    ------
    ClientError
        If it is not a pair of tensors by name and of a dictionary.
    """
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise _unfit(client, described(pair))
    weights, metrics = pair
    for role, part in (("weights", weights), ("metrics", metrics)):
        if not isinstance(part, Mapping) and (sends or part is metrics):
            raise _unfit(client, f"{described(part)} as {role}")
    for name, weight in weights.items() if sends else ():
        if not isinstance(weight, Tensor):
            raise _unfit(client, f"{described(weight)} as its weight {name!r}")
    return weights, metrics


def _unfit(client: Client, returned: str) -> ClientError:
    return ClientError(
        f"release of {type(client).__name__} returns {returned}; expected a pair of "
        "dictionaries by name, of weights (tensors) and of metrics (numbers), such as "
        "super().release() returns"
    )
