"""Tensors and plain values on disk: written whole or not at all, read without pickle."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

_META = "splitmix"


class StorageError(RuntimeError):
    """A file that was asked for cannot be read."""


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    Raises
    ------
    OSError
        If the data cannot be written (a full disk, say); the old file is intact then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomic(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def save_tensors(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write named tensors (any device) and JSON-able `meta` to one safetensors file, atomically."""
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # safetensors refuses tensors that share memory; tied weights and views are stored twice.
    seen: set[int] = set()
    for name, tensor in flat.items():
        memory = tensor.untyped_storage().data_ptr()
        if tensor.numel() and memory in seen:
            flat[name] = tensor.clone()
        seen.add(memory)
    write_atomic(path, save(flat, metadata={_META: json.dumps(dict(meta))}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_tensors` wrote: (tensors on the CPU, meta).

    Raises
    ------
    StorageError
        If the file is missing, truncated or not one of ours.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            if _META not in header:
                raise StorageError(f"{path} was not written by flwr-splitmix")
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(header[_META])  # noqa: SIM118
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors named "PREFIX.name", by their names without it."""
    start = f"{prefix}."
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


def pack_optimizer(
    optimizer: torch.optim.Optimizer, prefix: str = "optimizer"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Take an optimizer's state apart into named tensors and JSON-able values."""
    state = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{prefix}.{index}.{name}"] = value
            else:
                plain.setdefault(str(index), {})[name] = value
    return tensors, {"groups": state["param_groups"], "state": plain}


def unpack_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    prefix: str = "optimizer",
) -> None:
    """Put what `pack_optimizer` took apart into an optimizer of the same kind and parameters."""
    state: dict[int, dict[str, Any]] = {
        int(index): dict(entries) for index, entries in meta["state"].items()
    }
    for name, tensor in under(prefix, tensors).items():
        index, entry = name.split(".", 1)
        state.setdefault(int(index), {})[entry] = tensor.clone()
    optimizer.load_state_dict({"state": state, "param_groups": meta["groups"]})
