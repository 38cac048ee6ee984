"""The checked result, for a checkpoint, of a strategy's `server_state`, also a user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from flwr_splitmix.overriding import of_package
from flwr_splitmix.server.rounds.hooks import RoundHooks
from flwr_splitmix.storage import json_values
from flwr_splitmix.words import described, listed


def state_of(strategy: RoundHooks) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and JSON values of a strategy's `server_state`, once checked.

    Raises
    ------
    TypeError
        With the strategy's name, for anything else; or if it lacks some that the class of this
        package from which the strategy descends returns. Without them a resumed run would
        continue with an untrained segment.
    """
    whose = f"{type(strategy).__name__}.server_state()"
    returned: object = strategy.server_state()
    parts = returned if isinstance(returned, (tuple, list)) else ()
    if len(parts) != 2 or not all(isinstance(part, Mapping) for part in parts):
        raise TypeError(
            f"{whose} is {described(returned)}; expected a pair of tensors by name and JSON "
            "values by name"
        )
    tensors, values = parts
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"{whose} has a tensor named {name!r}; names must be text")
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{whose} has {described(tensor)} as {name!r}; expected a tensor")
    values = json_values(values, whose)
    for required, entries in zip(_of_package(strategy), (tensors, values), strict=True):
        if missing := sorted(required.keys() - entries.keys()):
            raise TypeError(
                f"{whose} lacks {listed(map(repr, missing), most=1)}; add to what "
                "super().server_state() returns, and call super().restore_server(tensors, values)"
            )
    return dict(tensors), dict(values)


def _of_package(strategy: RoundHooks) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """Return the state of the package's own class, if that of a user's overrides it."""
    owners = [kind for kind in type(strategy).__mro__ if "server_state" in vars(kind)]
    owner = next(kind for kind in owners if of_package(kind))
    if owner is owners[0] or owner is RoundHooks:
        return {}, {}
    state: tuple[Mapping[str, Tensor], Mapping[str, Any]] = vars(owner)["server_state"](strategy)
    return state
