"""Whether tensors hold NaN, infinite or large numbers, found out in few passes over them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether no number is NaN or infinite; waits once for the tensors' devices."""
    if not tensors:
        return True
    # A finite sum has only finite terms. Otherwise it may have overflowed: check each tensor.
    first = tensors[0].device
    sums = torch.stack([tensor.sum().to(first, torch.float32) for tensor in tensors])
    return bool(sums.isfinite().all()) or all(bool(t.isfinite().all()) for t in tensors)


def not_finite_in(module: nn.Module) -> str:
    """Return the name of a parameter that is NaN or infinite, or of a buffer with NaN; "" if none.

    A buffer may be infinite: it may be a mask. Tensors without memory are passed over.
    """
    for name, weight in module.named_parameters():
        if not weight.is_meta and not all_finite([weight.detach()]):
            return name
    for name, buffer in module.named_buffers():
        if not buffer.is_meta and bool(buffer.isnan().any()):
            return name
    return ""


def largest_magnitude(tensor: Tensor) -> Tensor:
    """Return the largest absolute number of a floating tensor that is not empty; NaN if one is."""
    least, most = tensor.detach().aminmax()  # along a dimension it takes ten times as long
    return torch.maximum(-least, most)


def squares_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Return whether all numbers and their squares, which Adam keeps, are finite: bool ().

    Their sum must be finite, too. The squares are those in float32 of tensors in float16. Does not
    wait for a device. There must be at least one tensor.
    """
    exact = [t.float() if t.dtype == torch.float16 else t for t in tensors]
    return get_total_norm(exact).isfinite()
