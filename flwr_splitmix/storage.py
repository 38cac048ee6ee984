"""Tensors and plain values in files: written whole or not at all, read without pickle."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Set
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from flwr_splitmix.files import check_regular, marked, unmarked, write_atomic
from flwr_splitmix.words import with_article

_META = "splitmix"

_NEEDS = {"amsgrad": "max_exp_avg_sq", "centered": "grad_avg", "momentum": "momentum_buffer"}
"""Options of torch's optimizers, and what those that have them keep for each parameter."""

DIGEST = "splitmix-sha256"
"""Key of the digest among a file's plain values."""


class StorageError(RuntimeError):
    """A file that was asked for cannot be read."""


class OtherFormError(StorageError):
    """A file is whole, but not in the form that this version writes; no older one replaces it."""

    def __init__(self, path: object, what: str) -> None:
        super().__init__(
            f"{path} {what}, as this version of flwr-splitmix writes it: read it with the version "
            "that wrote it, or begin a new run"
        )


def digest(tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> str:
    """Return SHA-256 of named tensors (names, dtypes, shapes, bytes) and JSON-able values."""
    # As it will be read: keys become text.
    hashed = hashlib.sha256(json.dumps(json.loads(json.dumps(dict(meta)))).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        hashed.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        if tensor.numel():  # an empty tensor cannot be seen as bytes
            hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    *,
    flush: bool = True,
    digested: bool = True,
    private: bool = False,
) -> None:
    """Write named tensors (any device) and JSON-able `meta` to one safetensors file, atomically.

    The file has a digest of both, so that a reader notices if a bit of it has changed, unless it
    is not to be `digested`, which is faster. For `flush` and `private` see `write_atomic`.
    """
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # safetensors refuses tensors that share memory; tied weights and views are stored twice.
    seen: set[int] = set()
    for name, tensor in flat.items():
        memory = tensor.untyped_storage().data_ptr()
        if tensor.numel() and memory in seen:
            flat[name] = tensor.clone()
        seen.add(memory)
    values = {**meta, DIGEST: digest(flat, meta)} if digested else dict(meta)
    text = json.dumps(marked(values), allow_nan=False)
    write_atomic(path, save(flat, metadata={_META: text}), flush=flush, private=private)


def load_tensors(path: Path, *, digested: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote: (tensors on the CPU, meta).

    Parameters
    ----------
    digested
        Whether the file was written with a digest.

    Raises
    ------
    StorageError
        If the file is missing, truncated or not one of ours, or its bytes have changed since it
        was written; an OtherFormError if it has no digest, and should.
    """
    try:
        check_regular(path)
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            if _META not in header:
                raise StorageError(f"{path} was not written by flwr-splitmix")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            meta = unmarked(json.loads(header[_META]))
    except RecursionError:
        raise StorageError(f"cannot read {path}: it is nested too deeply") from None
    except (OSError, SafetensorError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    if not isinstance(meta, dict):
        raise StorageError(f"cannot read {path}: its values are no JSON object")
    written = meta.pop(DIGEST, None)
    if written is None and digested:
        raise OtherFormError(path, "has no digest")
    if digested and written != digest(tensors, meta):
        raise StorageError(f"cannot read {path}: its bytes have changed since it was written")
    return tensors, meta


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors named "PREFIX.name", by their names without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


def pack_optimizer(
    optimizer: torch.optim.Optimizer, prefix: str = "optimizer"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Take an optimizer's state apart into named tensors and JSON-able values.

    Options that JSON cannot hold, such as a dtype, are left out: the optimizer that goes on has
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


def json_values(values: Any, whose: str) -> Any:
    """Return values as ones that can be written as JSON: NumPy's numbers and 0-d tensors as plain.

    Raises
    ------
    TypeError
        If there is anything else; the message begins with `whose`.
    """
    try:
        same = json.loads(json.dumps(values)) == values
    except TypeError:
        same = False
    return values if same else _json_values(values, whose, "")


def _json_key(name: Any, whose: str, at: str) -> str:
    if not isinstance(name, str):
        raise TypeError(
            f"{whose} has the key {name!r}{at and f' at {at}'}, which JSON would turn into text; "
            "take text as keys, such as str(client)"
        )
    return name


def _json_values(values: Any, whose: str, at: str) -> Any:
    if isinstance(values, np.generic) or (isinstance(values, Tensor) and values.ndim == 0):
        values = values.item()
    if values is None or isinstance(values, (bool, int, float, str)):
        return values
    if isinstance(values, Mapping):
        return {
            _json_key(name, whose, at): _json_values(value, whose, f"{at}[{name!r}]")
            for name, value in values.items()
        }
    if isinstance(values, (list, tuple)):
        return [_json_values(value, whose, f"{at}[{i}]") for i, value in enumerate(values)]
    raise TypeError(
        f"{whose} has {with_article(type(values).__name__)}{at and f' at {at}'}; it must consist "
        "of JSON values: numbers, text, lists, dictionaries (of a tensor or an array take "
        ".tolist())"
    )


def text_keys(counts: Mapping[int, int]) -> dict[str, int]:
    """Return counts by client as JSON keeps them; `whole_keys` reads them."""
    return {str(client): count for client, count in counts.items()}


def whole_keys(kept: Mapping[str, int]) -> dict[int, int]:
    """Return what `text_keys` was given."""
    return {int(client): int(count) for client, count in kept.items()}


def plain_numbers(metrics: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Return metrics as Flower takes them: NumPy's numbers and 0-d tensors as plain, lists as are.

    Raises
    ------
    TypeError
        If a value is anything else; the message begins with `whose`.
    """
    return {name: _number(name, value, whose) for name, value in metrics.items()}


def plain_number(value: Any) -> int | float | None:
    """Return a number, also NumPy's or a 0-d tensor, as a plain one; None for anything else."""
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    return None


def _number(name: str, value: Any, whose: str) -> int | float | list[int] | list[float]:
    if (number := plain_number(value)) is not None:
        return number
    if isinstance(value, list):
        return value
    raise TypeError(
        f"{whose} returned {name!r} as {with_article(type(value).__name__)}; metrics are numbers"
    )


def unpack_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    prefix: str = "optimizer",
) -> None:
    """Put what `pack_optimizer` took apart into an optimizer of the same kind and parameters.

    The optimizer keeps the options that it was made with: a run may go on with others.

    Raises
    ------
    ValueError
        If the parameters are others, an option of this kind of optimizer is missing, or one of
        its options needs a state that there is not.
    """
    packed = meta["groups"]
    own = [dict(group) for group in optimizer.param_groups]
    if len(packed) != len(own):
        raise ValueError(
            f"this state of an optimizer has {len(packed)} groups of parameters, not {len(own)}"
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
        for ours, theirs in zip(own, packed, strict=True)
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    _keep_scalar_dtypes(optimizer, state)
    for group, ours, theirs in zip(optimizer.param_groups, own, packed, strict=True):
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
        for name, kept in entries.items():
            if name != "step" and isinstance(kept, Tensor) and kept.ndim == 0:
                loaded[name] = kept.to(loaded[name].device)
