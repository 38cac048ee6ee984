"""Wire formats: bounds on errors, and numbers of bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_splitmix.links.frames.wire import (
    WIRE_DTYPES,
    WireDtype,
    check_wire_dtype,
    narrow,
    widen,
    wire_bytes,
)

SHAPES = [(), (0,), (5,), (3, 0), (0, 3), (2, 3, 4), (4, 7, 1)]
FLOATS = [torch.float64, torch.float32, torch.bfloat16]


def there_and_back(tensor: torch.Tensor, wire: WireDtype) -> torch.Tensor:
    return widen(*narrow(tensor, wire), tensor.dtype)


@st.composite
def patches(draw: st.DrawFn) -> torch.Tensor:
    """Draw numbers (b, a, d) whose patches differ by many orders of magnitude."""
    source = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shape = [draw(st.integers(1, 5)) for _ in range(3)]
    exponents = torch.randint(-20, 20, (*shape[:2], 1), generator=source)
    numbers = torch.randn(shape, generator=source, dtype=torch.float64)
    return numbers * 2.0 ** exponents.double()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(patches())
def test_the_error_is_bounded(original: torch.Tensor) -> None:
    gap = {w: (there_and_back(original, w) - original).abs() for w in WIRE_DTYPES}  # type: ignore[arg-type]
    assert not gap["keep"].any()
    assert (gap["float32"] <= 2.0**-24 * original.abs()).all()
    assert (gap["bfloat16"] <= 2.0**-8 * original.abs()).all()
    # Below 2**-29 of the largest number, float16 has no further digits.
    floor = original.abs().max() * 2.0**-39
    assert (gap["float16"] <= 2.0**-11 * original.abs() + floor).all()
    patch = original.abs().amax(-1, keepdim=True)
    assert (gap["int8"] <= patch / 254 * (1 + 1e-5)).all()
    assert (gap["int4"] <= patch / 14 * (1 + 1e-5)).all()
    assert (gap["int8-stochastic"] <= patch / 127 * (1 + 1e-5)).all()
    assert (gap["int4-stochastic"] <= patch / 7 * (1 + 1e-5)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("largest", [3e-6, 1.0, 1e4])
def test_the_error_is_bounded_in_half_precision_too(dtype: torch.dtype, largest: float) -> None:
    """Levels in the tensor's own digits would make zeros of small gradients."""
    source = torch.Generator().manual_seed(0)
    original = (largest * (2 * torch.rand(20, 40, generator=source) - 1)).to(dtype)
    patch = original.float().abs().amax(-1, keepdim=True)
    for wire, levels in (("int8", 254), ("int4", 14)):
        gap = (widen(*narrow(original, wire), torch.float32) - original.float()).abs()  # type: ignore[arg-type]
        assert (gap <= patch / levels * (1 + 1e-5)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wire", ["int8", "int4"])
def test_a_tensor_of_16_bits_loses_its_own_rounding_at_most(
    wire: WireDtype, dtype: torch.dtype
) -> None:
    """A scale that is rounded to its type first may be 0 in float16, and so would all be."""
    source = torch.Generator().manual_seed(0)
    original = (1e-5 * torch.randn(20, 40, generator=source)).to(dtype)
    exact = widen(*narrow(original, wire), torch.float32)
    assert torch.equal(there_and_back(original, wire), exact.to(dtype))


def test_float32_is_exact_for_float32() -> None:
    original = torch.randn(2, 3, 4)
    numbers, scale = narrow(original, "float32")
    assert numbers is original
    assert scale is None


@pytest.mark.parametrize("magnitude", [1e-7, 1e7])
def test_float16_neither_loses_small_gradients_nor_overflows(magnitude: float) -> None:
    original = torch.randn(8, 5, 3) * magnitude
    assert torch.allclose(there_and_back(original, "float16"), original, rtol=2.0**-10, atol=0)


@pytest.mark.parametrize("wire", WIRE_DTYPES)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shape_and_dtype_return_and_the_bytes_are_foreseen(
    shape: tuple[int, ...], dtype: torch.dtype, wire: WireDtype
) -> None:
    original = torch.randn(shape).to(dtype)
    numbers, scale = narrow(original, wire)
    back = widen(numbers, scale, dtype)
    assert back.shape == original.shape
    assert back.dtype == dtype
    assert wire_bytes(original, wire) == numbers.nbytes + (0 if scale is None else scale.nbytes)


def test_int8_costs_a_byte_a_number_and_four_a_patch() -> None:
    assert wire_bytes(torch.randn(32, 64, 192), "int8") == 32 * 64 * (192 + 4)


def test_int4_costs_half_a_byte_a_number_and_four_a_patch() -> None:
    original = torch.randn(32, 64, 192)
    assert wire_bytes(original, "int4") == 32 * 64 * (192 // 2 + 4)
    assert wire_bytes(original, "int4") / original.nbytes == pytest.approx(1 / 8, rel=0.05)
    assert wire_bytes(torch.randn(2, 5), "int4") == 2 * (3 + 4)


@pytest.mark.parametrize(("wire", "levels"), [("int8", 127), ("int4", 7)])
def test_stochastic_rounding_is_right_on_average(wire: str, levels: int) -> None:
    original = torch.tensor([[1.0, 0.3 / levels, -2.5 / levels, 0.0, 5 / levels]]).expand(20_000, 5)
    draws = torch.Generator().manual_seed(1)
    original = original.double()
    stochastic: WireDtype = f"{wire}-stochastic"  # type: ignore[assignment]
    back = widen(*narrow(original, stochastic, draws), original.dtype) * levels
    # Standard deviation of the mean: at most 0.5 / sqrt(20,000).
    assert torch.allclose(back.mean(0), original[0] * levels, atol=0.015, rtol=1e-6)
    assert set(back[:, 1].round().tolist()) == {0.0, 1.0}
    # A number on a level stays there.
    assert back[:, [0, 3, 4]].std(0).max() < 1e-5
    nearest = there_and_back(original, wire) * levels  # type: ignore[arg-type]
    assert not nearest[:, 1].any()


def test_draws_repeat_with_their_seed() -> None:
    original = torch.randn(4, 5)
    first, other, again = (
        narrow(original, "int8-stochastic", torch.Generator().manual_seed(seed))[0]
        for seed in (1, 2, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("pairs", [torch.zeros(0, 3), torch.zeros(2, 0), torch.zeros(())])
def test_packed_numbers_without_any_are_refused(pairs: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="two numbers in a byte need a scale, and a dimension"):
        widen(pairs.to(torch.uint8), torch.ones(()), torch.float32)


def test_packed_numbers_without_a_scale_are_refused() -> None:
    with pytest.raises(ValueError, match="two numbers in a byte need a scale"):
        widen(torch.ones(2, 3, dtype=torch.uint8), None, torch.float32)


@pytest.mark.parametrize("wire", WIRE_DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_do_not_become_finite(wire: WireDtype, bad: float) -> None:
    original = torch.tensor([[1.0, 2.0, 3.0], [4.0, bad, 6.0]])
    back = there_and_back(original, wire)
    assert not back[1, 1].isfinite()


@pytest.mark.parametrize("wire", WIRE_DTYPES)
def test_zeros_and_integers_stay_as_they_are(wire: WireDtype) -> None:
    assert not there_and_back(torch.zeros(2, 3), wire).any()
    labels = torch.tensor([3, 2**40])
    assert narrow(labels, wire) == (labels, None)


@pytest.mark.parametrize(
    "scale", [torch.ones(2, 1, dtype=torch.float64), torch.ones(3, 1), torch.ones(2, 3)]
)
def test_a_scale_of_another_shape_or_dtype_is_refused(scale: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"a scale is .* expected \(\) or \(2, 1\)"):
        widen(torch.ones(2, 3, dtype=torch.int8), scale, torch.float32)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="wire-dtype is 'int2'; it must be one of keep, float32"):
        check_wire_dtype("int2")
