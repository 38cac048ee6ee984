"""Noise inside a share: what travels, how far a record can move it, and that it never repeats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flwr_splitmix.mixers import (
    SHARES,
    BoxShare,
    FullShare,
    IdShare,
    InputLevel,
    InputShare,
    Mixer,
    Mixup,
    NoisyShare,
    NoMixing,
    PatchCutMix,
    PatchShare,
    Plan,
    RandomCutout,
    Share,
    Shuffled,
    SmashedShape,
    Upload,
    WeightedShare,
    share_from_wire,
)
from flwr_splitmix.mixers.accounting import earlier_releases, release_of
from flwr_splitmix.mixers.noisy import Noisy
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.accountant import epsilon_from_rdp, rdp_curve
from flwr_splitmix.privacy.costs import release_costs
from flwr_splitmix.seeding import seeded_secrets
from tests.privacy.gaussian import attacked_epsilon, exact_epsilon

N, D, L = 8, 4, 3
NOISE = GaussianNoise(sigma_s=0.5, sigma_y=0.25)
SILENT = replace(NOISE, sigma_s=0.0, sigma_y=0.0)
"""Clipping alone: shows what the noise is added to."""

PATCHES = PatchShare(lam=0.375, patches=N, seed=1, start=2, stop=5)
BEHIND = PatchShare(lam=0.375, patches=N, prefix=2, seed=1, start=2, stop=5)
BOX = BoxShare(lam=0.25, patches=N, columns=4, top=0, bottom=1, left=1, right=3, inside=True)
EMPTY = PatchShare(lam=0.0, patches=N, seed=1, start=4, stop=4)
CUTOUT = PatchShare(patches=N, seed=1, start=0, stop=4)  # its label is not weighted
SHARES_INSIDE: dict[str, Share] = {
    "full": FullShare(),
    "mixup": WeightedShare(lam=0.3),
    "cutmix": PATCHES,
    "cutmix, prefix": BEHIND,
    "cutmix, by sample": replace(PATCHES, per_sample=True),
    "box": BOX,
    "nothing": EMPTY,
    "cutout": CUTOUT,
}


def noisy(inner: Share, **changes: Any) -> NoisyShare:
    return NoisyShare.around(inner, replace(NOISE, **changes), L)


def tokens_of(share: Share) -> int:
    return N + getattr(share, "prefix", 0)


def smashed(share: Share, batch: int = 2, scale: float = 1.0, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    shape = (batch, tokens_of(share), D)
    return scale * torch.randn(shape, generator=source, dtype=torch.float64)


@pytest.fixture
def repeatable() -> Iterator[None]:
    with seeded_secrets(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


# What travels.


@pytest.mark.parametrize("inner", SHARES_INSIDE.values(), ids=SHARES_INSIDE)
def test_noise_on_what_is_kept_travels_like_the_share_inside(inner: Share) -> None:
    made = smashed(inner)
    share = noisy(inner)
    upload, _ = share.upload(made)
    plain, _ = inner.upload(made)
    assert upload.shape == plain.shape == share.upload_shape((2, tokens_of(inner), D))
    assert (upload.dtype, upload.nbytes) == (plain.dtype, plain.nbytes)
    assert noisy(inner, sigma_s=0.0, clip="none").upload(made)[0].equal(plain)


@pytest.mark.parametrize("inner", SHARES_INSIDE.values(), ids=SHARES_INSIDE)
def test_noise_on_all_positions_travels_like_everything(inner: Share) -> None:
    """The uplink is that of parallel split learning; what is not kept is noise alone."""
    made = smashed(inner, batch=400)
    share = noisy(inner, smashed_noise="all")
    upload, _ = share.upload(made)
    assert (
        tuple(upload.shape) == tuple(made.shape) == share.upload_shape((400, tokens_of(inner), D))
    )
    assert upload.nbytes == FullShare().upload(made)[0].nbytes
    placed = torch.zeros_like(made)
    inner.place(placed, inner.upload(clipped(made))[0])
    noise = upload - placed
    assert noise.std() == pytest.approx(0.5, rel=0.05)
    assert noise.mean(0).abs().max() < 6 * 0.5 / 400**0.5


def clipped(made: Tensor) -> Tensor:
    """Clip every patch to norm 1, written out."""
    length: Tensor = made.norm(dim=2, keepdim=True)
    return made / length.clamp(min=1)


@pytest.mark.parametrize("everywhere", [False, True], ids=["kept", "all"])
@pytest.mark.parametrize("inner", SHARES_INSIDE.values(), ids=SHARES_INSIDE)
def test_the_gradient_is_that_of_the_clipped_upload_without_noise(
    inner: Share, everywhere: bool
) -> None:
    share = noisy(inner, smashed_noise="all" if everywhere else "kept")
    own = smashed(inner, scale=3.0).requires_grad_()
    cotangent = smashed(inner, seed=1)
    _, anchor = share.upload(own)
    torch.autograd.backward([anchor], [share.pick(cotangent)])
    other = smashed(inner, scale=3.0).requires_grad_()
    placed = torch.zeros_like(other)
    inner.place(placed, inner.upload(clipped(other))[0])
    (placed * cotangent).sum().backward()  # type: ignore[no-untyped-call]
    assert own.grad is not None
    assert other.grad is not None
    torch.testing.assert_close(own.grad, other.grad)


# The noise of a mixture.


def mixture(mixer: Mixer, noise: GaussianNoise, clients: int, batch: int) -> tuple[Plan, Any]:
    """Mix uploads of zeros, all of class 0."""
    shape = SmashedShape(batch, N, D, classes=L)
    outer = Noisy(mixer, noise)
    plan = outer.plan(range(clients), shape, np.random.default_rng(0))
    uploads = {}
    for client in range(clients):
        (share,) = plan.shares(client)
        assert share is not None
        sent, _ = share.upload(torch.zeros(shape.size, dtype=torch.float64))
        soft = share.upload_labels(torch.zeros(batch, dtype=torch.int64), torch.float64)
        uploads[client] = Upload([sent], [soft])
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


# Labels.


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
    assert share.labels_clamped
    assert float(soft.min()) == 0
    assert float(soft.max()) == most
    own = soft.gather(1, labels[:, None]).mean()
    others = (soft.sum() / 1500 - own) / (L - 1)
    assert own > others + 0.1
    without = noisy(PATCHES, label_noise=place, sigma_y=0.0).upload_labels(labels, dtype)
    torch.testing.assert_close(without.sum(1), torch.full((1500,), 0.375, dtype=dtype))
    free = noisy(PATCHES, label_noise=place, sigma_y=0.5, clamp_labels=False)
    assert not free.labels_clamped
    assert float(free.upload_labels(labels, dtype).min()) < 0


# How far a record can move an upload.


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
    told = replace(share, noise=replace(noise, sigma_s=1.0, sigma_y=1.0))
    stated = 2 * release_costs(release_of(told, tokens_of(inner), D), "replace")[0]
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
    kept = torch.zeros(1, tokens_of(inner), D, dtype=torch.float64)
    inner.place(kept, torch.ones(inner.upload_shape((1, tokens_of(inner), D))).double())
    record = 1e3 * kept
    moved = share.upload(record)[0] - share.upload(-record)[0]
    assert float(moved.square().sum()) == pytest.approx(squared, abs=1e-12)
    told = replace(share, noise=replace(share.noise, sigma_s=1.0, sigma_y=1.0))
    stated = 2 * release_costs(release_of(told, tokens_of(inner), D), "replace")
    assert stated[0] == pytest.approx(squared, abs=1e-12)
    # A replaced one-hot label moves two numbers, each by lam.
    assert stated[1] == pytest.approx(2 * inner.lam**2, abs=1e-12)
    soft = [share.upload_labels(torch.tensor([c]), torch.float64) for c in (0, 1)]
    assert float((soft[0] - soft[1]).square().sum()) == pytest.approx(stated[1])


def test_a_mask_that_keeps_more_than_it_says_is_charged_in_full() -> None:
    """A server that announces a small ratio for a large mask gains nothing."""
    liar = replace(PATCHES, lam=0.125, start=0, stop=N)
    told = release_of(noisy(liar), N, D)
    assert told == release_of(noisy(FullShare()), N, D)
    # Cutout keeps half of the patches and weighs its label fully.
    assert release_of(noisy(CUTOUT), N, D).ratio == 1


def test_what_has_no_noise_or_is_not_understood_has_no_bound() -> None:
    class Own(FullShare):
        family = None

    for share in (FullShare(), PATCHES, EMPTY, noisy(Own())):
        assert np.isinf(release_costs(release_of(share, N, D), "replace")).all()


def test_an_earlier_attempt_is_taken_to_have_sent_everything_in_every_pass() -> None:
    shares = [noisy(PATCHES), None, noisy(EMPTY)]
    (again,) = earlier_releases(shares, N, D, times=2)
    full = release_costs(release_of(noisy(FullShare()), N, D), "replace")
    np.testing.assert_allclose(release_costs(again, "replace"), 2 * 3 * full)
    assert earlier_releases(shares, N, D, times=0) == []


# Secrets.


def test_noise_is_fresh_in_every_upload_whatever_the_seed_of_torch() -> None:
    made, labels = smashed(PATCHES), torch.tensor([0, 1])
    for share in (noisy(PATCHES), noisy(PATCHES, smashed_noise="all")):
        sent, soft = [], []
        for _ in range(3):
            torch.manual_seed(0)
            sent.append(share.upload(made)[0])
            soft.append(share.upload_labels(labels, torch.float64))
        assert all(not sent[0].eq(other).any() for other in sent[1:])
        assert all(not soft[0].equal(other) for other in soft[1:])


def test_noise_repeats_where_secrets_are_seeded_for_a_test() -> None:
    made = smashed(PATCHES)
    with seeded_secrets(), torch.random.fork_rng(devices=[]):
        sent = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            sent.append(noisy(PATCHES).upload(made)[0])
    assert sent[0].equal(sent[1])
    assert not sent[0].equal(sent[2])


def test_uploading_leaves_the_generator_of_the_segment_alone() -> None:
    """Dropout draws from it: with noise or without, a client drops the same."""
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    noisy(PATCHES).upload(smashed(PATCHES))
    assert torch.random.get_rng_state().equal(before)


# The wire.


def wire(share: Share) -> Any:
    return json.loads(json.dumps(share.to_wire()))


@pytest.mark.parametrize("inner", SHARES_INSIDE.values(), ids=SHARES_INSIDE)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clip": "sample", "clip_norm": 3, "smashed_noise": "all"},
        {"clip": "none", "label_noise": "before", "clamp_labels": False, "sigma_y": 0},
    ],
    ids=["default", "sample", "none"],
)
def test_a_noisy_share_crosses_the_wire_unchanged(inner: Share, changes: dict[str, Any]) -> None:
    share = noisy(inner, **changes)
    made = share_from_wire(wire(share), SHARES)
    assert made == share
    assert (made.lam, made.learns) == (inner.lam, inner.learns)


IDS = IdShare()
INPUTS = InputShare(rows=2, columns=4, classes=L, seed=0, parts=((0, FullShare()),))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"noise": {"sigma_s": -1.0}}, "sigma_s is -1.0; a standard deviation is a number of at"),
        ({"noise": {"sigma_y": -1e-9}}, "sigma_y is -1e-09"),
        ({"noise": {"sigma_s": float("nan")}}, "sigma_s is nan"),
        ({"noise": {"sigma_s": float("inf")}}, "sigma_s is inf"),
        ({"noise": {"sigma_s": "1"}}, "sigma_s is '1'"),
        ({"noise": {"sigma_s": True}}, "sigma_s is True"),
        ({"noise": {"sigma_s": None}}, "sigma_s is None"),
        ({"noise": {"clip_norm": 0}}, "clip_norm is 0; it must be a number above 0"),
        ({"noise": {"clip": "never"}}, "clip is 'never'; allowed are patch, range, sample, none"),
        ({"noise": {"clip": ["patch"]}}, "clip is"),
        ({"noise": {"smashed_noise": "none"}}, "smashed_noise is 'none'; allowed are kept, all"),
        ({"noise": {"clamp_labels": 0}}, "clamp_labels is 0; it must be true or false"),
        ({"noise": {"seed": 3}}, "noise has no seed; its values are"),
        ({"noise": {"generator": 3}}, "noise has no generator"),
        ({"noise": {"repeatable": True}}, "noise has no repeatable"),
        ({"noise": None}, "noise a dictionary"),
        ({"noise": [1.0, 1.0]}, "noise a dictionary"),
        ({"classes": 0}, "classes is 0; allowed are 1 to 1000000"),
        ({"classes": 10**12}, "classes is 1000000000000; allowed are 1 to 1000000"),
        ({"classes": 3.0}, "classes must be int"),
        ({"classes": True}, "classes must be int"),
        ({"lam": 0.1}, "share 'noisy' needs inner, noise and classes, and nothing else"),
        ({"learns": False}, "and nothing else"),
        ({"seed": 0}, "and nothing else"),
        ({"repeatable_secrets": True}, "and nothing else"),
        ({"inner": wire(noisy(PATCHES))}, "share 'noisy' sends no classes that noise could cover"),
        ({"inner": wire(INPUTS)}, "share 'input' sends no classes that noise could cover"),
        ({"inner": wire(IDS)}, "share 'ids' sends no classes that noise could cover"),
        ({"inner": {**wire(PATCHES), "repeatable": True}}, "unexpected keyword argument 'repea"),
    ],
    ids=str,
)
def test_hostile_values_are_rejected_with_one_clear_error(
    changes: dict[str, Any], sentence: str
) -> None:
    told = wire(noisy(PATCHES))
    if isinstance(changes.get("noise"), dict):
        changes = {"noise": {**told["noise"], **changes["noise"]}}
    with pytest.raises(ValueError, match=sentence) as caught:
        share_from_wire({**told, **changes}, SHARES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["sigma_s", "sigma_y"])
def test_noise_that_does_not_say_how_much_is_refused(name: str) -> None:
    told = wire(noisy(PATCHES))
    del told["noise"][name]
    with pytest.raises(ValueError, match=f"noise needs {name}"):
        share_from_wire(told, SHARES)


def test_a_noisy_share_has_the_ratio_of_the_one_inside() -> None:
    """What is charged is the ratio of the share inside: no other one can be made up around it."""
    with pytest.raises(ValueError, match="must have one lam and one learns"):
        NoisyShare(lam=0.1, inner=PATCHES, noise=NOISE, classes=L)


# The mixer.


@pytest.mark.parametrize(
    "mixer", [InputLevel(Mixup()), InputLevel(RandomCutout(), across="clients")], ids=str
)
def test_mixers_of_inputs_take_no_noise(mixer: Mixer) -> None:
    with pytest.raises(ValueError, match=r"InputLevel\(\w+\) takes no noise"):
        Noisy(mixer, NOISE)


@pytest.mark.parametrize(
    "mixer",
    [PatchCutMix(3, k_times=True), Mixup(2), Shuffled(PatchCutMix(2)), RandomCutout(0.5)],
    ids=str,
)
def test_the_plan_is_that_of_the_mixer_inside_with_noise_around_each_share(mixer: Mixer) -> None:
    shape = SmashedShape(2, N, D, classes=L)
    plan = Noisy(mixer, NOISE).plan(range(5), shape, np.random.default_rng(3))
    inside = mixer.plan(range(5), shape, np.random.default_rng(3))
    assert type(plan) is type(inside)
    for client in range(5):
        expected = inside.shares(client)
        assert plan.shares(client) == [s and NoisyShare.around(s, NOISE, L) for s in expected]
    assert plan.unmixed == inside.unmixed


# An attack on what NoisyShare itself sends.

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
    told = noisy(inner, smashed_noise=everywhere, label_noise=place, sigma_s=1.0, sigma_y=1.0)
    slopes = release_costs(release_of(told, N, D), "replace")
    sigma_s, sigma_y = np.sqrt(2 * slopes)  # a shift of one standard deviation in either part
    share = replace(told, noise=replace(told.noise, sigma_s=sigma_s, sigma_y=sigma_y))

    def seen(sign: float, label: int) -> np.ndarray:
        record = torch.zeros(DRAWS, N, D)
        record[:, :, 0] = sign * 50
        sent, _ = share.upload(record)
        soft = share.upload_labels(torch.full((DRAWS,), label), torch.float32)
        return torch.cat([sent.flatten(1), soft], dim=1).numpy()

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
