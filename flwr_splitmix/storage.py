"""Tensors and plain values in files: written whole or not at all, read without pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from flwr_splitmix.files.json_values import marked, unmarked
from flwr_splitmix.files.reading import check_regular
from flwr_splitmix.files.writing import write_atomic
from flwr_splitmix.words import with_article

_META = "splitmix"

DIGEST = "splitmix-sha256"
"""Key of the digest among a file's plain values."""


class StorageError(RuntimeError):
    """A file that was asked for cannot be read."""


class OtherFormError(StorageError):
    """A file is whole, but not in the form that this version writes; no older one replaces it."""

    def __init__(self, path: object, defect: str) -> None:
        super().__init__(
            f"{path} {defect}, which this version of flwr-splitmix always writes: read it with the "
            "version that wrote it, or begin a new run"
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
    memories: set[int] = set()
    for name, tensor in flat.items():
        memory = tensor.untyped_storage().data_ptr()
        if tensor.numel() and memory in memories:
            flat[name] = tensor.clone()
        memories.add(memory)
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
        raise StorageError(f"cannot read {path}: its values are not a JSON object")
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


def whole_keys(counts: Mapping[str, int]) -> dict[int, int]:
    """Return what `text_keys` was given."""
    return {int(client): int(count) for client, count in counts.items()}


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
