"""The device and the precision of a segment's computation."""

from __future__ import annotations

import contextlib
from typing import Literal, get_args

import torch
from torch import Tensor

from flwr_splitmix.values import check_choice

Precision = Literal["auto", "float32", "bfloat16"]


def pick_device(name: str = "auto") -> torch.device:
    """Return the device called `name`: "auto" chooses CUDA, then MPS, then the CPU.

    Raises
    ------
    ValueError
        If there is no such device on this machine.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device).cpu()  # "meta" holds no numbers
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"device {name!r} is not available here; it must be 'auto', 'cpu', 'cuda', 'cuda:<i>' "
            "or 'mps' where the machine has them"
        ) from error
    return device


def pick_precision(name: Precision, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products: "auto" is bfloat16 on CUDA devices that support it.

    Raises
    ------
    ValueError
        If the name is none of "auto", "float32", "bfloat16".
    """
    check_choice("precision", name, get_args(Precision))
    if name == "auto":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if fast else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


def in_float64(tensor: Tensor) -> Tensor:
    """Return a tensor in float64: on its device, or on the CPU if that is Apple's GPU."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def autocast(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[object]:
    """Run the block in mixed precision if `dtype` is a reduced one."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype)
