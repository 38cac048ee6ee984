"""Wire formats of activations and gradients: exact, or narrower to save bytes."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.device import in_float64

WireDtype = Literal[
    "keep", "float32", "bfloat16", "float16", "int8", "int8-stochastic", "int4", "int4-stochastic"
]
"""Formats in which floating-point tensors are sent; "keep" is the tensor's own dtype."""

WIRE_DTYPES: tuple[str, ...] = get_args(WireDtype)

STOCHASTIC = "-stochastic"
"""Suffix of formats with stochastic rounding, which is unbiased."""

_NARROW = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def check_wire_dtype(name: str) -> WireDtype:
    """Return `name` if it is a wire format.

    Raises
    ------
    ValueError
        If it is not.
    """
    if name not in WIRE_DTYPES:
        raise ValueError(f"wire-dtype is {name!r}; it must be one of {', '.join(WIRE_DTYPES)}")
    return name  # type: ignore[return-value]


def level_bits(wire: str) -> int:
    """Return the bits per number in a format with one scale per patch; 0 for other formats."""
    return {"int8": 8, "int4": 4}.get(wire.removesuffix(STOCHASTIC), 0)


def narrow(
    tensor: Tensor, wire: WireDtype, draws: torch.Generator | None = None
) -> tuple[Tensor, Tensor | None]:
    """Convert a floating-point tensor to a wire format: (numbers, scale).

    Tensors that are no wider than the format, or not floating-point, are returned unchanged; for
    int4 also scalars and empty tensors. Maximum errors, relative to each number unless stated
    otherwise:

    - float32: 2**-24 (of float64 numbers);
    - bfloat16: 2**-8;
    - float16: 2**-11; the whole tensor is first scaled by a power of two, so that neither small
      gradients vanish nor large activations overflow; numbers below 2**-28 times the largest may
      lose more;
    - int8: 1/254 of the largest magnitude in the same patch (the last dimension);
    - int4: 1/14 of it;
    - int8-stochastic, int4-stochastic: twice as much, with mean 0 (stochastic rounding: Gupta et
      al., Deep learning with limited numerical precision, 2015, section 3).

    Tensors of 16 bits also lose what their own type rounds when they are made again.

    Parameters
    ----------
    draws
        CPU generator for stochastic rounding; None uses one with seed 0.

    Returns
    -------
    The numbers, and their scale if the format has one: float32, of shape () for float16 and
    (..., 1) for int8 and int4; int4 packs two numbers into a uint8. NaN and infinite numbers stay
    so or become NaN. They spoil others, too: with int8 and int4 their whole patch becomes NaN, and
    with float16 finite numbers of the tensor may become infinite.
    """
    if not narrows(tensor, wire):
        return tensor, None
    if bits := level_bits(wire):
        chance = None
        if wire.endswith(STOCHASTIC):
            generator = draws or torch.Generator().manual_seed(0)
            chance = torch.rand(tensor.shape, generator=generator).to(tensor.device)
        # Half precision has fewer digits than a level's place needs.
        wide = tensor.float() if tensor.element_size() < 4 else tensor
        return _quantize(wide, chance) if bits == 8 else _pack(wide, chance)
    if wire == "float16":
        largest = _largest(tensor.reshape(1, -1)).view(())
        # float32 represents these powers exactly; tensors beyond this range do not occur.
        exponent = (torch.frexp(in_float64(largest))[1] - 15).clamp(-126, 127)
        scale = torch.ldexp(torch.ones((), device=exponent.device), exponent).to(tensor.device)
        return (tensor / scale.to(tensor.dtype)).to(torch.float16), scale
    return tensor.to(_NARROW[wire]), None


def _quantize(tensor: Tensor, chance: Tensor | None) -> tuple[Tensor, Tensor]:
    rows = tensor if tensor.dim() else tensor.view(1)
    scale = (_largest(rows) / 127).float()
    divisor = torch.where(scale == 0, 1.0, scale).to(tensor.dtype)
    numbers = _rounded((rows / divisor).view(tensor.shape), chance).clamp_(-127, 127)
    return numbers.to(torch.int8), scale


def _pack(tensor: Tensor, chance: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return levels as 1 to 15, two per byte, and their scale; 0 pads a patch of odd length."""
    scale = (_largest(tensor) / 7).float()
    divisor = torch.where(scale == 0, 1.0, scale).to(tensor.dtype)
    # The scale turns patches with non-finite numbers into NaN.
    levels = _rounded((tensor / divisor).nan_to_num_(0.0, 0.0, 0.0), chance).clamp_(-7, 7)
    nibbles = F.pad((levels + 8).to(torch.uint8), (0, tensor.shape[-1] % 2))
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4), scale


def _rounded(levels: Tensor, chance: Tensor | None) -> Tensor:
    """Round to nearest, or up where a uniform number in [0, 1) is below the fractional part.

    Integers stay unchanged.
    """
    if chance is None:
        return levels.round_()
    below = levels.floor()
    return below.add_(chance < levels - below)


def _unpack(pairs: Tensor) -> Tensor:
    high = pairs >> 4
    nibbles = torch.stack([pairs & 15, high], dim=-1).flatten(-2)
    odd = int(high.reshape(-1)[-1] == 0)
    return nibbles[..., : nibbles.shape[-1] - odd].to(torch.int16) - 8


def _largest(rows: Tensor) -> Tensor:
    """Return the largest absolute value of each row, as (..., 1); NaN if the row has one."""
    if not rows.shape[-1]:
        return rows.new_zeros((*rows.shape[:-1], 1))
    low, high = torch.aminmax(rows, dim=-1, keepdim=True)
    return torch.maximum(-low, high)


def widen(numbers: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Convert numbers from the wire back to a tensor of `dtype`.

    Raises
    ------
    ValueError
        If the scale does not match the numbers.
    """
    packed = numbers.dtype == torch.uint8
    if packed and (scale is None or not numbers.dim() or not numbers.numel()):
        raise ValueError("two numbers in a byte need a scale, and a dimension that is not empty")
    if scale is None:
        return numbers.to(dtype)
    patches = (*numbers.shape[:-1], 1)
    if scale.dtype != torch.float32 or tuple(scale.shape) not in ((), (1,), patches):
        raise ValueError(
            f"a scale is {tuple(scale.shape)} of {scale.dtype}, "
            f"expected () or {patches} of torch.float32"
        )
    if packed:
        numbers = _unpack(numbers)
    # A 16-bit type has too few digits for the scale, and float16 has no place for a small one.
    wide = torch.promote_types(dtype, torch.float32)
    scaled = numbers.to(wide).mul_(scale.to(wide).view(scale.shape if numbers.dim() else ()))
    return scaled.to(dtype)


def wire_bytes(tensor: Tensor, wire: WireDtype) -> int:
    """Return how many bytes a tensor's numbers and scale take on the wire."""
    if not narrows(tensor, wire):
        return tensor.nbytes
    if bits := level_bits(wire):
        patches = math.prod(tensor.shape[:-1])
        width = tensor.shape[-1] if tensor.dim() else 1
        return patches * ((width * bits + 7) // 8 + 4)
    numbers = tensor.numel() * _NARROW[wire].itemsize
    return numbers + (4 if wire == "float16" else 0)


def rounds(wire: str, dtype: torch.dtype) -> bool:
    """Return whether a format may round tensors of `dtype`: "float32" rounds float64 only."""
    return wire != "keep" and (wire != "float32" or dtype == torch.float64)


def narrows(tensor: Tensor, wire: WireDtype) -> bool:
    """Return whether a tensor is converted to be sent in a wire format."""
    if wire == "keep" or not tensor.is_floating_point():
        return False
    bits = level_bits(wire)
    if bits == 4:
        return tensor.dim() > 0 and tensor.numel() > 0
    return tensor.element_size() > (1 if bits else _NARROW[wire].itemsize)
