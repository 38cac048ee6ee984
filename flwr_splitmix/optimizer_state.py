"""An optimizer's state as named tensors and plain values, and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Set
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from flwr_splitmix.storage import json_values, under

_NEEDS = {"amsgrad": "max_exp_avg_sq", "centered": "grad_avg", "momentum": "momentum_buffer"}
"""Options of torch's optimizers, and what those that have them keep for each parameter."""


def pack_optimizer(
    optimizer: torch.optim.Optimizer, prefix: str = "optimizer"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Take an optimizer's state apart into named tensors and JSON-able values.

    Options that JSON cannot hold, such as a dtype, are left out: the optimizer that is resumed has
    its own.
    """
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{prefix}.{index}.{name}"] = value
            else:
                plain.setdefault(str(index), {})[name] = value
    whose = f"the state of {type(optimizer).__name__}"
    options = _options(optimizer)
    groups = [
        {name: value for name, value in group.items() if not _left_out(name, value, options)}
        for group in state["param_groups"]
    ]
    return tensors, json_values({"groups": groups, "state": plain}, whose)


def _left_out(name: str, value: Any, options: Set[str]) -> bool:
    """Return whether an entry of a group of parameters is an option that JSON cannot hold."""
    return name in options and not _is_json(value)


def _options(optimizer: torch.optim.Optimizer) -> set[str]:
    """Return the names of an optimizer's arguments; what else a group has is part of its state."""
    makers = [
        vars(kind)["__init__"] for kind in type(optimizer).__mro__ if "__init__" in vars(kind)
    ]
    return {name for maker in makers for name in _arguments(maker)}


@lru_cache
def _arguments(maker: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(maker).parameters)


def _is_json(value: Any) -> bool:
    try:
        json_values(value, "")
    except TypeError:
        return False
    return True


def unpack_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    prefix: str = "optimizer",
) -> None:
    """Put what `pack_optimizer` took apart into an optimizer of the same kind and parameters.

    The optimizer keeps the options that it was made with: a run may continue with others.

    Raises
    ------
    ValueError
        If the parameters are others, an option of this kind of optimizer is missing, or one of
        its options needs a state that there is not.
    """
    packed = meta["groups"]
    own_groups = [dict(group) for group in optimizer.param_groups]
    if len(packed) != len(own_groups):
        raise ValueError(
            f"this state of an optimizer has {len(packed)} groups of parameters, not "
            f"{len(own_groups)}"
        )
    state: dict[int, dict[str, Any]] = {
        int(index): dict(entries) for index, entries in meta["state"].items()
    }
    for name, tensor in under(prefix, tensors).items():
        index, entry = name.split(".", 1)
        state.setdefault(int(index), {})[entry] = tensor.clone()
    options = _options(optimizer)
    # The optimizer's own entries stand in for those that were left out.
    groups = [
        {**{n: value for n, value in ours.items() if _left_out(n, value, options)}, **theirs}
        for ours, theirs in zip(own_groups, packed, strict=True)
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    _keep_scalar_dtypes(optimizer, state)
    for group, ours, theirs in zip(optimizer.param_groups, own_groups, packed, strict=True):
        if missing := sorted(ours.keys() - group.keys()):
            raise ValueError(f"this state of an optimizer has no {missing[0]!r}")
        group.update({name: value for name, value in ours.items() if name in options})
        _check_needs(optimizer, group, theirs)


def _check_needs(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], packed: Mapping[str, Any]
) -> None:
    """Raise ValueError if a group lacks the state for an option that was off when it was packed.

    If the option was on, its state is there, in other libraries' optimizers by other names.
    """
    states = [optimizer.state[p] for p in group["params"] if p in optimizer.state]
    for option, entry in _NEEDS.items():
        turned_on = group.get(option) and not packed.get(option)
        if turned_on and any(entry not in state for state in states):
            raise ValueError(
                f"this state of an optimizer has no {entry!r}, needed for {option}="
                f"{group[option]!r}"
            )


def _keep_scalar_dtypes(
    optimizer: torch.optim.Optimizer, state: Mapping[int, Mapping[str, Any]]
) -> None:
    """Give loaded 0-d tensors the dtype that they were kept in; torch's loading casts all but step.

    Moments take the weights' dtype, which may be another in the resumed run. Scalars, such as
    NAdam's `mu_product`, have one of their own. The moments of a 0-d weight look like scalars, so
    what is kept for such a weight is left as torch loads it.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, entries in state.items():
        if not parameters[index].ndim:
            continue
        loaded = optimizer.state[parameters[index]]
        for name, entry in entries.items():
            if name != "step" and isinstance(entry, Tensor) and entry.ndim == 0:
                loaded[name] = entry.to(loaded[name].device)
