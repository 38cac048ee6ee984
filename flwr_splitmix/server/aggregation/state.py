"""A Flower strategy's state from round to round, as tensors for a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower
from torch import Tensor

_FLOAT = "float.value"

FLOAT = f".{_FLOAT}"
"""End of the name of a float's tensor."""


class RefusedStateError(ValueError):
    """A part of a strategy refuses the state that was kept of it."""


def state_of(strategy: flower.Strategy) -> tuple[dict[str, Tensor], list[str]]:
    """Return the state of a strategy and of those that it wraps, and what cannot be kept of it.

    Kept are arrays (moments, current arrays), floats, and whatever has a `state_dict` of tensors
    or of JSON values: a torch module, say, or an accountant.

    Returns
    -------
    Tensors by "attribute.kind.name", and the attributes with another `state_dict`.
    """
    tensors: dict[str, Tensor] = {}
    lost: list[str] = []
    for name, value in vars(strategy).items():
        if isinstance(value, flower.Strategy):
            attribute_tensors, inner = state_of(value)
            lost += inner
        elif _is_stateful(value):
            state = value.state_dict()
            attribute_tensors = _of_state_dict(state)
            if state and not attribute_tensors:
                lost.append(f"{type(strategy).__name__}.{name}")
        else:
            attribute_tensors = {
                k: torch.from_numpy(np.array(array)) for k, array in _arrays(value).items()
            }
        tensors |= {f"{name}.{key}": tensor for key, tensor in attribute_tensors.items()}
    return tensors, lost


def restore_state(strategy: flower.Strategy, tensors: Mapping[str, Tensor]) -> None:
    """Restore what `state_of` returned.

    Raises
    ------
    RefusedStateError
        If an attribute does not take its state, or has none in the checkpoint; the message names
        the attribute.
    """
    by_attribute: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        attribute, key = name.split(".", 1)
        by_attribute.setdefault(attribute, {})[key] = tensor
    for name, value in vars(strategy).items():
        if isinstance(value, flower.Strategy):
            restore_state(value, by_attribute.pop(name, {}))
        elif (
            name not in by_attribute and _is_stateful(value) and _of_state_dict(value.state_dict())
        ):
            raise RefusedStateError(
                f"the checkpoint has no state of {type(strategy).__name__}.{name}"
            )
    for attribute, attribute_tensors in by_attribute.items():
        (kind,) = {key.split(".", 1)[0] for key in attribute_tensors}
        named = {key.split(".", 1)[1]: tensor for key, tensor in attribute_tensors.items()}
        if kind in ("json", "tensors"):
            _load(strategy, attribute, _loadable(kind, named))
        else:
            setattr(strategy, attribute, _rebuilt(kind, named))


def _is_stateful(value: Any) -> bool:
    return callable(getattr(value, "load_state_dict", None))


def _of_state_dict(state: Any) -> dict[str, Tensor]:
    """Return a state as tensors; {} if it is neither of tensors nor of JSON values."""
    if isinstance(state, Mapping) and all(isinstance(one, Tensor) for one in state.values()):
        return {f"tensors.{key}": one.detach().clone() for key, one in state.items()}
    try:
        text = json.dumps(state, allow_nan=False).encode()
    except (TypeError, ValueError):
        return {}
    return {"json.text": torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def _arrays(value: Any) -> dict[str, np.ndarray]:
    if isinstance(value, ArrayRecord):
        return {f"record.{k}": a.numpy() for k, a in value.items()}
    # Arithmetic on a 0-d array, such as BatchNorm's counter, gives a numpy scalar.
    numeric = (np.ndarray, np.generic)
    if isinstance(value, dict) and value and all(isinstance(v, numeric) for v in value.values()):
        return {f"dict.{k}": np.asarray(v) for k, v in value.items()}
    if isinstance(value, list) and value and all(isinstance(v, numeric) for v in value):
        return {f"list.{i:06d}": np.asarray(v) for i, v in enumerate(value)}
    if isinstance(value, float):
        return {_FLOAT: np.asarray(value)}
    return {}


def _loadable(kind: str, named: Mapping[str, Tensor]) -> Any:
    return dict(named) if kind == "tensors" else json.loads(bytes(named["text"].tolist()))


def _load(strategy: flower.Strategy, attribute: str, state: Any) -> None:
    owner, part = type(strategy).__name__, getattr(strategy, attribute, None)
    if part is None or not _is_stateful(part):
        raise RefusedStateError(f"the checkpoint has a state of {owner}.{attribute}, which is gone")
    try:
        part.load_state_dict(state)
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        raise RefusedStateError(
            f"{owner}.{attribute} does not take its state of the checkpoint: {error}"
        ) from error


def _rebuilt(kind: str, named: Mapping[str, Tensor]) -> Any:
    arrays = {key: tensor.numpy() for key, tensor in named.items()}
    if kind == "record":
        return ArrayRecord({k: Array(a) for k, a in arrays.items()})
    if kind == "list":
        return [arrays[k] for k in sorted(arrays)]
    return float(arrays["value"]) if kind == "float" else arrays
