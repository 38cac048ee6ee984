"""The sensitivity of a noisy upload, and the attacks that its price must withstand."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flwr_splitmix.accounting.uploads import earlier_releases, release_of
from flwr_splitmix.mixers import (
    FullShare,
    NoisyShare,
    PatchShare,
    Share,
    WeightedShare,
)
from flwr_splitmix.privacy.accountant import epsilon_from_rdp, rdp_curve
from flwr_splitmix.privacy.costs import release_costs
from tests.mixers.noisy_shares import (
    BEHIND,
    BOX,
    CUTOUT,
    EMPTY,
    PATCHES,
    SHARES_INSIDE,
    SILENT,
    D,
    L,
    N,
    noisy,
    tokens_of,
)
from tests.privacy.gaussian import attacked_epsilon, exact_epsilon


@st.composite
def records(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Return two batches of two samples that differ in the first: any size, equal or opposite."""
    seed, wide = draw(st.integers(0, 2**31)), draw(st.sampled_from([1, 2]))
    scale = draw(st.sampled_from([1e-3, 0.3, 1.0, 40.0]))
    source = torch.Generator().manual_seed(seed)
    shape = (2, N + 2, D)
    first = scale * torch.randn(shape, generator=source, dtype=torch.float64)
    second = first.clone()
    kind = draw(st.sampled_from(["other", "opposite", "absent"]))
    if kind == "other":
        second[0] = wide * torch.randn(shape[1:], generator=source, dtype=torch.float64)
    else:
        second[0] = -first[0] if kind == "opposite" else torch.zeros(shape[1:]).double()
    return first, second


@pytest.mark.parametrize("clip", ["patch", "sample", "range"])
@pytest.mark.parametrize("everywhere", ["kept", "all"])
@pytest.mark.parametrize("inner", SHARES_INSIDE.values(), ids=SHARES_INSIDE)
@given(records(), st.sampled_from([0.1, 1.0, 5.0]))
@settings(max_examples=15, deadline=None)
def test_neighbouring_batches_move_an_upload_by_the_stated_sensitivity_at_most(
    inner: Share, everywhere: Any, clip: Any, pair: tuple[Tensor, Tensor], bound: float
) -> None:
    noise = replace(SILENT, clip=clip, clip_norm=bound, smashed_noise=everywhere)
    share = NoisyShare.around(inner, noise, L)
    first, second = (part[:, : tokens_of(inner)] for part in pair)
    moved = share.upload(first)[0] - share.upload(second)[0]
    assert not moved[1:].any()  # a record moves no other sample
    # Slopes are S^2 / (2 sigma^2).
    unit_share = replace(share, noise=replace(noise, sigma_s=1.0, sigma_y=1.0))
    stated = 2 * release_costs(release_of(unit_share, tokens_of(inner), D), "replace")[0]
    assert float(moved.square().sum()) <= stated * (1 + 1e-9)


@pytest.mark.parametrize(
    ("inner", "clip", "squared"),
    [
        (FullShare(), "patch", 4 * N),
        (PATCHES, "patch", 4 * 3),
        (BOX, "patch", 4 * 2),
        (WeightedShare(lam=0.3), "patch", 4 * N * 0.09),
        (BEHIND, "patch", 4 * (3 + 2 * 0.375**2)),
        (EMPTY, "patch", 0),
        (PATCHES, "range", 3 * D),
        (WeightedShare(lam=0.3), "range", N * D * 0.09),
        (PATCHES, "sample", 4),
        (WeightedShare(lam=0.3), "sample", 4 * 0.09),
    ],
)
def test_the_worst_pair_moves_it_by_just_the_closed_form(
    inner: Share, clip: Any, squared: float
) -> None:
    """Opposite records, larger than any clip, that lie in the kept patches alone."""
    share = NoisyShare.around(inner, replace(SILENT, clip=clip), L)
    kept_patches = torch.zeros(1, tokens_of(inner), D, dtype=torch.float64)
    inner.place(kept_patches, torch.ones(inner.upload_shape((1, tokens_of(inner), D))).double())
    record = 1e3 * kept_patches
    moved = share.upload(record)[0] - share.upload(-record)[0]
    assert float(moved.square().sum()) == pytest.approx(squared, abs=1e-12)
    unit_share = replace(share, noise=replace(share.noise, sigma_s=1.0, sigma_y=1.0))
    stated = 2 * release_costs(release_of(unit_share, tokens_of(inner), D), "replace")
    assert stated[0] == pytest.approx(squared, abs=1e-12)
    # A replaced one-hot label moves two numbers, each by lam.
    assert stated[1] == pytest.approx(2 * inner.lam**2, abs=1e-12)
    soft = [share.upload_labels(torch.tensor([c]), torch.float64) for c in (0, 1)]
    assert float((soft[0] - soft[1]).square().sum()) == pytest.approx(stated[1])


def test_a_mask_that_keeps_more_than_it_says_is_charged_in_full() -> None:
    """A server that announces a small ratio for a large mask gains nothing."""
    liar = replace(PATCHES, lam=0.125, start=0, stop=N)
    release = release_of(noisy(liar), N, D)
    assert release == release_of(noisy(FullShare()), N, D)
    # Cutout keeps half of the patches and weighs its label fully.
    assert release_of(noisy(CUTOUT), N, D).ratio == 1


def test_what_has_no_noise_or_is_not_understood_has_no_bound() -> None:
    class Own(FullShare):
        family = None

    class Louder(FullShare):
        name = "louder"

        def upload(self, smashed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return 100 * smashed, 100 * smashed

    class Loud:
        def upload(self, smashed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return 100 * smashed, 100 * smashed

    class Mixed(Loud, FullShare):
        name = "loud"

    class Below(Mixed):
        name = "below"

    class Placed(FullShare):
        name = "placed"

        def place(self, mixed: torch.Tensor, upload: torch.Tensor) -> None:
            mixed.copy_(100 * upload)

    class Parted(FullShare):
        name = "parted"

        def part(self, first: int) -> FullShare:
            return Louder()

    class Silent(NoisyShare):
        name = "silent"

        def upload(self, smashed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return smashed, smashed

    bounded = noisy(FullShare())
    silent = Silent(**{field.name: getattr(bounded, field.name) for field in fields(bounded)})
    unbounded = [noisy(kind()) for kind in (Own, Louder, Mixed, Below, Placed, Parted)]
    for share in (FullShare(), PATCHES, EMPTY, *unbounded, silent):
        assert np.isinf(release_costs(release_of(share, N, D), "replace")).all()


def test_an_earlier_attempt_is_taken_to_have_sent_everything_in_every_pass() -> None:
    shares = [noisy(PATCHES), None, noisy(EMPTY)]
    (again,) = earlier_releases(shares, N, D, times=2)
    full = release_costs(release_of(noisy(FullShare()), N, D), "replace")
    np.testing.assert_allclose(release_costs(again, "replace"), 2 * 3 * full)
    assert earlier_releases(shares, N, D, times=0) == []


DELTA, DRAWS = 0.05, 20_000
HALF = PatchShare(lam=0.5, patches=N, seed=1, start=0, stop=4)


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("place", ["after", "before"])
@pytest.mark.parametrize("everywhere", ["kept", "all"])
@pytest.mark.parametrize(
    "inner", [FullShare(), WeightedShare(lam=0.5), HALF], ids=["full", "mixup", "cutmix"]
)
def test_no_attack_on_an_upload_shows_more_than_its_ledger_grants(
    inner: Share, everywhere: Any, place: Any
) -> None:
    """Two records as far apart as clip and label allow, told apart by the best linear score."""
    unit_share = noisy(inner, smashed_noise=everywhere, label_noise=place, sigma_s=1.0, sigma_y=1.0)
    slopes = release_costs(release_of(unit_share, N, D), "replace")
    sigma_s, sigma_y = np.sqrt(2 * slopes)  # a shift of one standard deviation in either part
    share = replace(unit_share, noise=replace(unit_share.noise, sigma_s=sigma_s, sigma_y=sigma_y))

    def seen(sign: float, label: int) -> np.ndarray:
        record = torch.zeros(DRAWS, N, D)
        record[:, :, 0] = sign * 50
        upload, _ = share.upload(record)
        soft = share.upload_labels(torch.full((DRAWS,), label), torch.float32)
        return torch.cat([upload.flatten(1), soft], dim=1).numpy()

    first, second, first_again, second_again = (
        seen(*record) for record in ((1.0, 0), (-1.0, 1), (1.0, 0), (-1.0, 1))
    )
    towards = (first.mean(axis=0) - second.mean(axis=0)) / first.var(axis=0).clip(1e-12)
    draws = (first, second, first_again, second_again)
    shown = attacked_epsilon([each @ towards for each in draws], DELTA)
    slope = float(release_costs(release_of(share, N, D), "replace").sum())
    granted = float(epsilon_from_rdp(rdp_curve(slope), DELTA)[0])
    assert slope == pytest.approx(1.0)
    # Clamped labels tell less than plain ones; the smashed data alone are a shift of one.
    assert 0.5 * exact_epsilon(DELTA, 1.0) < shown <= granted
