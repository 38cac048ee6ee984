"""Noise around a share: uploads, gradients, mixtures and labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.mixers import (
    FullShare,
    Group,
    Member,
    Mixer,
    Mixup,
    NoisyShare,
    NoMixing,
    PatchCutMix,
    PatchShare,
    Plan,
    Share,
    Shuffled,
    SmashedShape,
    Upload,
    WeightedShare,
)
from flwr_splitmix.mixers.noisy import Noisy
from flwr_splitmix.privacy import GaussianNoise
from tests.mixers.noisy_shares import (
    NOISE,
    PATCHES,
    SHARES_INSIDE,
    D,
    L,
    N,
    noisy,
    smashed,
    tokens_of,
)


@pytest.mark.parametrize("inner", SHARES_INSIDE.values(), ids=SHARES_INSIDE)
def test_noise_on_what_is_kept_travels_like_the_share_inside(inner: Share) -> None:
    tokens = smashed(inner)
    share = noisy(inner)
    upload, _ = share.upload(tokens)
    plain, _ = inner.upload(tokens)
    assert upload.shape == plain.shape == share.upload_shape((2, tokens_of(inner), D))
    assert (upload.dtype, upload.nbytes) == (plain.dtype, plain.nbytes)
    assert noisy(inner, sigma_s=0.0, clip="none").upload(tokens)[0].equal(plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_to_few_bits_follows_the_noise(dtype: torch.dtype) -> None:
    """Rounded before it, a ratio or a patch may be up to twice as large as what is priced."""
    share = noisy(
        WeightedShare(lam=3.1e-8), sigma_s=1e-6, sigma_y=1e-6, clip_norm=0.5, clamp_labels=False
    )
    upload, _ = share.upload(torch.ones(2000, 4, 64, dtype=dtype))
    labels = share.upload_labels(torch.ones(100_000, dtype=torch.int64), dtype)
    assert upload.dtype == labels.dtype == dtype
    assert float(upload.double().mean()) == pytest.approx(0.5 / 8 * 3.1e-8, abs=6e-9)
    assert float(labels.double()[:, 1].mean()) == pytest.approx(3.1e-8, abs=2.2e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_smashed_data_of_few_bits_are_clipped_in_float32(dtype: torch.dtype) -> None:
    """Clipped in the dtype itself, a patch is up to 0.3 % longer than what is priced."""
    share = noisy(FullShare(), sigma_s=2e-4, clip_norm=0.3)
    upload, _ = share.upload(torch.ones(2000, 4, 64, dtype=dtype))
    # The dtype's own nearest numbers are 6e-6 (float16) and 1e-4 (bfloat16) away from this mean.
    assert float(upload.double().mean()) == pytest.approx(0.3 / 8, abs=2e-6)


@pytest.mark.parametrize("sigma", [0.0, 3.0])
def test_a_class_outside_is_noise_alone(sigma: float) -> None:
    """An error would tell without noise which labels a batch has."""
    share = noisy(FullShare(), sigma_y=sigma, clamp_labels=False)
    soft_labels = share.upload_labels(torch.tensor([-1, 0, L - 1, L, 99]), torch.float32)
    assert tuple(soft_labels.shape) == (5, L)
    if not sigma:
        expected = torch.zeros(5, L)
        expected[1, 0] = expected[2, L - 1] = 1
        assert torch.equal(soft_labels, expected)


@pytest.mark.parametrize("inner", SHARES_INSIDE.values(), ids=SHARES_INSIDE)
def test_noise_on_all_positions_travels_like_everything(inner: Share) -> None:
    """The uplink is that of parallel split learning; what is not kept is noise alone."""
    tokens = smashed(inner, batch=400)
    share = noisy(inner, smashed_noise="all")
    upload, _ = share.upload(tokens)
    assert (
        tuple(upload.shape) == tuple(tokens.shape) == share.upload_shape((400, tokens_of(inner), D))
    )
    assert upload.nbytes == FullShare().upload(tokens)[0].nbytes
    placed = torch.zeros_like(tokens)
    inner.place(placed, inner.upload(clipped(tokens))[0])
    noise = upload - placed
    assert noise.std() == pytest.approx(0.5, rel=0.05)
    assert noise.mean(0).abs().max() < 6 * 0.5 / 400**0.5


def clipped(tokens: Tensor) -> Tensor:
    """Clip every patch to norm 1, written out."""
    length: Tensor = tokens.norm(dim=2, keepdim=True)
    return tokens / length.clamp(min=1)


@pytest.mark.parametrize("everywhere", [False, True], ids=["kept", "all"])
@pytest.mark.parametrize("inner", SHARES_INSIDE.values(), ids=SHARES_INSIDE)
def test_the_gradient_is_that_of_the_clipped_upload_without_noise(
    inner: Share, everywhere: bool
) -> None:
    share = noisy(inner, smashed_noise="all" if everywhere else "kept")
    tokens = smashed(inner, scale=3.0).requires_grad_()
    cotangent = smashed(inner, seed=1)
    _, anchor = share.upload(tokens)
    torch.autograd.backward([anchor], [share.pick(cotangent)])
    other = smashed(inner, scale=3.0).requires_grad_()
    placed = torch.zeros_like(other)
    inner.place(placed, inner.upload(clipped(other))[0])
    (placed * cotangent).sum().backward()  # type: ignore[no-untyped-call]
    assert tokens.grad is not None
    assert other.grad is not None
    torch.testing.assert_close(tokens.grad, other.grad)


def mixture(mixer: Mixer, noise: GaussianNoise, clients: int, batch: int) -> tuple[Plan, Any]:
    """Mix uploads of zeros, all of class 0."""
    shape = SmashedShape(batch, N, D, classes=L)
    outer = Noisy(mixer, noise)
    plan = outer.plan(range(clients), shape, np.random.default_rng(0))
    uploads = {}
    for client in range(clients):
        (share,) = plan.shares(client)
        assert share is not None
        upload, _ = share.upload(torch.zeros(shape.size, dtype=torch.float64))
        soft = share.upload_labels(torch.zeros(batch, dtype=torch.int64), torch.float64)
        uploads[client] = Upload([upload], [soft])
    return plan, outer.merge(uploads, plan, num_classes=L)


@pytest.mark.parametrize(
    ("mixer", "everywhere", "noises"),
    [
        (NoMixing(), "kept", 1),
        (PatchCutMix(4, None), "kept", 1),
        (PatchCutMix(4, None), "all", 4),
        (PatchCutMix(4, None, mask_per_sample=True), "kept", 1),
        (PatchCutMix(4, None, mask_per_sample=True), "all", 4),
        (Mixup(4, None), "kept", 4),
        (Mixup(4, None), "all", 4),
        (Shuffled(PatchCutMix(4, None)), "kept", 1),
    ],
    ids=str,
)
def test_variance_of_the_smashed_data_in_the_mixture(
    mixer: Mixer, everywhere: Any, noises: int
) -> None:
    noise = replace(NOISE, smashed_noise=everywhere)
    _, mixed = mixture(mixer, noise, clients=4, batch=4000)
    by_position = mixed.smashed.var(dim=(0, 2))
    expected = torch.full((N,), noises * 0.25, dtype=torch.float64)
    torch.testing.assert_close(by_position, expected, rtol=0.08, atol=0)


@pytest.mark.parametrize("place", ["after", "before"])
@pytest.mark.parametrize("mixer", [PatchCutMix(3), Mixup(3), NoMixing()], ids=str)
def test_mean_and_variance_of_the_labels_in_the_mixture(mixer: Mixer, place: Any) -> None:
    noise = replace(NOISE, label_noise=place, clamp_labels=False)
    plan, mixed = mixture(mixer, noise, clients=3, batch=20_000)
    ratios = [member.share.lam for member in plan.passes[0][0].members]
    squares = len(ratios) if place == "after" else sum(ratio**2 for ratio in ratios)
    torch.testing.assert_close(
        mixed.targets.mean(0), torch.tensor([1.0, 0, 0]).double(), rtol=0, atol=0.02
    )
    expected = torch.full((L,), squares * 0.0625, dtype=torch.float64)
    torch.testing.assert_close(mixed.targets.var(0), expected, rtol=0.08, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("place", ["after", "before"])
def test_labels_are_floats_weighted_and_clamped_by_the_client(
    place: Any, dtype: torch.dtype
) -> None:
    labels = torch.arange(L).repeat(500)
    share = noisy(PATCHES, label_noise=place, sigma_y=0.5)
    soft = share.upload_labels(labels, dtype)
    assert share.label_kind == "soft"
    assert (soft.dtype, tuple(soft.shape)) == (dtype, (1500, L))
    most = 1.0 if place == "after" else 0.375
    assert share.label_range == (0.0, 1.0)
    assert float(soft.min()) == 0
    assert float(soft.max()) == most
    labelled = soft.gather(1, labels[:, None]).mean()
    others = (soft.sum() / 1500 - labelled) / (L - 1)
    assert labelled > others + 0.1
    without = noisy(PATCHES, label_noise=place, sigma_y=0.0).upload_labels(labels, dtype)
    torch.testing.assert_close(without.sum(1), torch.full((1500,), 0.375, dtype=dtype))
    free = noisy(PATCHES, label_noise=place, sigma_y=0.5, clamp_labels=False)
    low, high = free.label_range
    unclamped = free.upload_labels(labels, dtype)
    assert low < float(unclamped.min()) < 0
    assert float(unclamped.max()) < high


@pytest.mark.parametrize("mixer", [Mixup(2), PatchCutMix(2)], ids=str)
def test_what_came_without_a_member_keeps_the_size_of_its_noise(mixer: Mixer) -> None:
    """Divided by a ratio of 0.002 the noise would be 500 times as large."""
    noise = replace(NOISE, clamp_labels=False)
    lam, prefix, batch = 0.002, 1, 50
    inner = [
        WeightedShare(lam=ratio)
        if isinstance(mixer, Mixup)
        else PatchShare(lam=ratio, patches=500, prefix=prefix, seed=1, start=start, stop=stop)
        for ratio, start, stop in ((lam, 0, 1), (1 - lam, 1, 500))
    ]
    shares = [NoisyShare.around(share, noise, L) for share in inner]
    shape = SmashedShape(batch, 500, D, prefix, classes=L)
    plan = Plan(shape, ((Group(tuple(Member(i, share) for i, share in enumerate(shares))),),))
    upload, _ = shares[0].upload(torch.zeros(shape.size, dtype=torch.float64))
    soft = shares[0].upload_labels(torch.zeros(batch, dtype=torch.int64), torch.float64)
    outer = Noisy(mixer, noise)
    mixed = outer.merge({0: Upload([upload], [soft])}, plan, num_classes=L)
    assert mixed.sources[0].ratio == pytest.approx(lam)
    assert torch.equal(mixed.targets, soft)
    assert mixed.smashed[:, :prefix].std() == pytest.approx(noise.sigma_s, rel=0.2)
    gradient = torch.randn(shape.size, dtype=torch.float64)
    (back,) = outer.split(gradient, mixed, plan)[0]
    assert back is not None
    assert torch.equal(back[:, :prefix], shares[0].pick(gradient)[:, :prefix])


@pytest.mark.parametrize("sigma_s", [0.0, 0.5])
@pytest.mark.parametrize("sigma_y", [0.0, 0.5])
def test_what_holds_no_noise_is_divided(sigma_s: float, sigma_y: float) -> None:
    """Examples of several labels have noise on the smashed data only; theirs are not halved."""
    inner = WeightedShare(lam=0.5)
    noise = replace(NOISE, sigma_s=sigma_s, sigma_y=sigma_y, clip="none", clamp_labels=False)
    share = NoisyShare.around(inner, noise, L)
    shape = SmashedShape(2, N, D, classes=L)
    plan = Plan(shape, ((Group((Member(0, share), Member(1, share))),),))
    classes = torch.tensor([1, 2])
    labels = classes if sigma_y else torch.tensor([[1, 0, 1], [0, 1, 1]])
    upload, _ = share.upload(torch.ones(shape.size, dtype=torch.float64))
    soft = share.upload_labels(labels, torch.float64)
    mixer = Noisy(Mixup(2), noise)
    mixed = mixer.merge({0: Upload([upload], [soft])}, plan, num_classes=L)
    assert torch.equal(mixed.targets, soft if sigma_y else labels.double())
    assert torch.equal(mixed.smashed, upload if sigma_s else torch.ones_like(upload))
    gradient = torch.randn(shape.size, dtype=torch.float64)
    (back,) = mixer.split(gradient, mixed, plan)[0]
    assert back is not None
    assert torch.equal(back, share.pick(gradient if sigma_s else 2 * gradient))
