"""A digest of all that a copy of a module is made of, to know that nothing of it has changed."""

from __future__ import annotations

import pickle
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_NUMPY = (np.ndarray, np.generic)
"""Types whose copies have all that is pickled, though they make these themselves."""


class _DigestFile:
    """A file that keeps a digest of the bytes written to it."""

    def __init__(self) -> None:
        self.hash = blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return len(data)


class _Pickler(pickle.Pickler):
    """Writes tensors by their values; torch would write where they are, too."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            if hasattr(type(value), "__deepcopy__") and not isinstance(value, _NUMPY):
                raise pickle.PicklingError("a copy of its own making may depend on anything")
            return NotImplemented
        plain = type(value) in (Tensor, nn.Parameter) and not value.__dict__
        if not plain or value.layout != torch.strided:
            raise pickle.PicklingError(f"a {type(value).__name__} may hold more than its values")
        detached = value.detach()
        kind = (
            detached.dtype,
            detached.device,
            tuple(detached.shape),
            detached.stride(),
            value.requires_grad,
        )
        flat = detached.cpu().contiguous().view(-1).view(torch.uint8)
        return str, (f"{kind} {blake2b(flat.numpy().data).hexdigest()}",)


def state_digest(module: nn.Module, *tensors: Tensor) -> bytes | None:
    """Return a digest of a module's weights, buffers and attributes, and of tensors.

    Equal digests mean that copies of the module (`copy.deepcopy`) do the same with equal random
    draws, unless its classes, or what it uses outside of it, have changed meanwhile.

    Returns
    -------
    16 bytes; None if the module, or one of the tensors, cannot be written in this way.
    """
    file = _DigestFile()
    try:
        _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump((module, tensors))
    except Exception:  # whatever a class of somebody else's raises
        return None
    return file.hash.digest()
