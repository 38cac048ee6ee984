"""Clipping bounds what it says, noise is Gaussian and where it should be, labels are clamped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.mechanism import add_noise, clip_smashed, noisy_labels
from flwr_splitmix.privacy.noise import Clip
from tests.privacy.placements import CLASSES, Placement, placements, worst_pair

NOISE = GaussianNoise(sigma_s=0.5, sigma_y=0.5)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lengths(clip: Clip, smashed: Tensor) -> Tensor:
    """Return what the clip bounds."""
    if clip == "range":
        return 2 * smashed.abs()
    dims: tuple[int, ...] = (2,) if clip == "patch" else (1, 2)
    norms: Tensor = torch.linalg.vector_norm(smashed, dim=dims)
    return norms


@pytest.mark.parametrize("clip", ["patch", "range", "sample"])
@given(scale=st.floats(0, 1e20), bound=st.floats(1e-3, 1e3), seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_clipping_bounds_and_leaves_what_is_within(
    clip: Clip, scale: float, bound: float, seed: int
) -> None:
    noise = replace(NOISE, clip=clip, clip_norm=bound)
    smashed = scale * torch.randn(3, 4, 5, generator=seeded(seed))
    clipped = clip_smashed(smashed, noise)
    assert (lengths(clip, clipped) <= bound * (1 + 1e-5)).all()
    # The squares of small numbers are 0 in float32.
    longest = float(lengths(clip, smashed.double()).max())
    small = smashed * (bound / max(longest, 1e-30) * 0.999)
    assert torch.equal(clip_smashed(small, noise), small)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [-45, -38, -30, -24, -23, -22, -12, 0, 30, 38])
@pytest.mark.parametrize("clip", ["patch", "range", "sample"])
def test_smashed_data_of_any_size_are_clipped(
    clip: Clip, exponent: int, dtype: torch.dtype
) -> None:
    """Below 1e-23 a length is 0 in float32: they would not be clipped, and hardly be charged."""
    smashed = torch.randn(3, 4, 50, generator=seeded(), dtype=torch.float64)
    smashed = (smashed * 10.0**exponent).to(dtype)
    bound = 1.2e-38
    clipped = clip_smashed(smashed, replace(NOISE, clip=clip, clip_norm=bound))
    assert (lengths(clip, clipped.double()) <= bound * (1 + 1e-3)).all()


@pytest.mark.parametrize("clip", ["patch", "sample"])
def test_clipped_vectors_keep_their_direction(clip: Clip) -> None:
    smashed = torch.randn(3, 4, 5, generator=seeded())
    clipped = clip_smashed(smashed, replace(NOISE, clip=clip, clip_norm=0.1))
    ratio = clipped / smashed
    assert torch.allclose(ratio, ratio[:, :, :1].expand_as(ratio))
    assert torch.allclose(lengths(clip, clipped), torch.tensor(0.1))


@pytest.mark.parametrize("clip", ["patch", "range", "sample", "none"])
def test_gradients_flow_also_through_zeros(clip: Clip) -> None:
    noise = replace(NOISE, clip=clip)
    smashed = torch.randn(2, 3, 4, dtype=torch.float64, generator=seeded())
    assert torch.autograd.gradcheck(
        lambda s: add_noise(clip_smashed(s, noise), 0.5, seeded()), smashed.requires_grad_()
    )
    zeros = torch.zeros(2, 3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(clip_smashed(zeros, noise).sum(), zeros)
    assert torch.equal(gradient, torch.ones(2, 3, 4))


def test_no_clipping_and_no_noise_change_nothing() -> None:
    smashed = 100 * torch.randn(2, 3, 4)
    assert torch.equal(add_noise(clip_smashed(smashed, replace(NOISE, clip="none")), 0), smashed)


@pytest.mark.parametrize("generator", [None, seeded(3)], ids=["system", "seeded"])
def test_noise_is_standard_normal_times_sigma(generator: torch.Generator | None) -> None:
    drawn = add_noise(torch.zeros(100_001), 3.0, generator).numpy().astype(np.float64) / 3
    grid = np.linspace(-3, 3, 61)
    distribution = np.searchsorted(np.sort(drawn), grid) / len(drawn)
    expected = torch.special.ndtr(torch.from_numpy(grid)).numpy()
    # Kolmogorov-Smirnov: a sound generator is further off once in 10^6 runs.
    assert np.abs(distribution - expected).max() < 2.7 / np.sqrt(len(drawn))
    assert 3.5 < np.abs(drawn).max() < 8.6
    # Numbers are made in pairs, which must not show: neither in sign nor in size.
    first, second = drawn[:50_000], drawn[50_001:]
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / np.sqrt(50_000)
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 6 / np.sqrt(50_000)


def test_a_seed_repeats_and_the_system_never_does() -> None:
    zeros = torch.zeros(4, 5)
    assert torch.equal(add_noise(zeros, 1, seeded(1)), add_noise(zeros, 1, seeded(1)))
    assert not torch.equal(add_noise(zeros, 1, seeded(1)), add_noise(zeros, 1, seeded(2)))
    torch.manual_seed(0)
    first = add_noise(zeros, 1)
    torch.manual_seed(0)
    assert not torch.equal(first, add_noise(zeros, 1))


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_shape_and_dtype_stay(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    noised = add_noise(torch.zeros(shape, dtype=dtype), 1.0)
    assert noised.shape == shape
    assert noised.dtype == dtype
    assert noised.isfinite().all()


def test_rounding_to_few_bits_comes_after_the_noise() -> None:
    smashed = torch.full((1000,), 256.0, dtype=torch.bfloat16)  # whose neighbours are 2 apart
    exact = add_noise(smashed.float(), 1.0, seeded())
    assert torch.equal(add_noise(smashed, 1.0, seeded()), exact.bfloat16())


@pytest.mark.parametrize("label_noise", ["after", "before"])
def test_labels_are_scaled_and_clamped(label_noise: str) -> None:
    noise = GaussianNoise.from_plain({"sigma_s": 1, "sigma_y": 2.0, "label_noise": label_noise})
    one_hot = torch.eye(4).repeat(500, 1)
    drawn = noisy_labels(one_hot, 0.25, noise, seeded())
    assert drawn.min() == 0
    assert drawn.max() == (1 if label_noise == "after" else 0.25)
    plain = noisy_labels(one_hot, 0.25, replace(noise, clamp_labels=False), seeded())
    limits = torch.tensor([0.0, 1.0 if label_noise == "after" else 0.25])
    assert torch.allclose(drawn, plain.clamp(limits[0], limits[1]))
    assert plain.mean().item() == pytest.approx(0.0625, abs=0.1)
    silent = noisy_labels(one_hot, 0.25, replace(noise, sigma_y=0.0))
    assert torch.equal(silent, 0.25 * one_hot)


@pytest.mark.parametrize("placement", placements(clamp=False, sigma_s=0.5, sigma_y=2.0), ids=str)
def test_the_variance_of_what_is_seen(placement: Placement) -> None:
    (record, label), _ = worst_pair()
    drawn = placement.draw(record, label, 20_000, seeded())
    smashed, labels = drawn[:, :-CLASSES].var(axis=0), drawn[:, -CLASSES:].var(axis=0)
    k, noise = placement.k, placement.noise
    members = k if placement.seen == "sum" else 1
    spread = members if placement.family == "mixup" or noise.smashed_noise == "all" else 1
    if placement.family == "cutmix" and noise.smashed_noise == "kept" and members == 1:
        assert (smashed[len(smashed) // k :] == 0).all()  # nothing travels but the kept patches
        smashed = smashed[: len(smashed) // k]
    scale = 1.0 if noise.label_noise == "after" else 1 / k**2
    np.testing.assert_allclose(smashed, 0.5**2 * spread, rtol=0.05)
    np.testing.assert_allclose(labels, 2.0**2 * members * scale, rtol=0.05)


@pytest.mark.parametrize("clip", ["patch", "range", "sample"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_become_zeros_each_by_itself(clip: Clip, bad: float) -> None:
    """Through crafted weights the places of NaN are the image's mask, at any sigma."""
    noise = replace(NOISE, clip=clip, clip_norm=1.0)
    smashed = torch.full((2, 3, 4), 0.1)
    holed = smashed.clone()
    holed[0, 1, 2] = holed[1, :, 0] = bad
    clipped = clip_smashed(holed, noise)
    expected = clip_smashed(torch.where(holed.isfinite(), holed, 0.0), noise)
    assert torch.equal(clipped, expected)
    assert add_noise(clipped, 0.5, seeded()).isfinite().all()
    finite = torch.randn(2, 3, 4, generator=seeded())
    leaf = finite.clone().requires_grad_()
    total = clip_smashed(torch.where(holed.isfinite(), leaf, bad), noise).sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()
