"""Noisy shares on the wire, their secrets, and the mixer that makes them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from flwr_splitmix.mixers import (
    SHARES,
    FullShare,
    IdShare,
    InputLevel,
    InputShare,
    Mixer,
    Mixup,
    NoisyShare,
    PatchCutMix,
    RandomCutout,
    Share,
    Shuffled,
    SmashedShape,
    share_from_wire,
)
from flwr_splitmix.mixers.noisy import Noisy
from flwr_splitmix.seeding import seeded_secrets
from tests.mixers.noisy_shares import (
    NOISE,
    PATCHES,
    SHARES_INSIDE,
    D,
    L,
    N,
    noisy,
    smashed,
)


def test_noise_is_fresh_in_every_upload_whatever_the_seed_of_torch() -> None:
    tokens, labels = smashed(PATCHES), torch.tensor([0, 1])
    for share in (noisy(PATCHES), noisy(PATCHES, smashed_noise="all")):
        uploads, soft = [], []
        for _ in range(3):
            torch.manual_seed(0)
            uploads.append(share.upload(tokens)[0])
            soft.append(share.upload_labels(labels, torch.float64))
        assert all(not uploads[0].eq(other).any() for other in uploads[1:])
        assert all(not soft[0].equal(other) for other in soft[1:])


def test_noise_repeats_where_secrets_are_seeded_for_a_test() -> None:
    tokens = smashed(PATCHES)
    with seeded_secrets(), torch.random.fork_rng(devices=[]):
        uploads = []
        for seed in (0, 0, 1):
            torch.manual_seed(seed)
            uploads.append(noisy(PATCHES).upload(tokens)[0])
    assert uploads[0].equal(uploads[1])
    assert not uploads[0].equal(uploads[2])


def test_uploading_leaves_the_generator_of_the_segment_alone() -> None:
    """Dropout draws from it: with noise or without, a client drops the same."""
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    noisy(PATCHES).upload(smashed(PATCHES))
    assert torch.random.get_rng_state().equal(before)


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
    received = share_from_wire(wire(share), SHARES)
    assert received == share
    assert (received.lam, received.learns) == (inner.lam, inner.learns)


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
        ({"noise": {"sigma_s": 10**400}}, "sigma_s is more than"),
        ({"noise": {"sigma_s": None}}, "sigma_s is None"),
        ({"noise": {"clip_norm": 0}}, "clip_norm is 0; it must be a number above 0"),
        ({"noise": {"clip": "never"}}, "clip is 'never'; it must be one of patch, range, sample"),
        ({"noise": {"clip": ["patch"]}}, "clip is"),
        ({"noise": {"smashed_noise": "none"}}, "smashed_noise is 'none'; it must be one of kept"),
        ({"noise": {"clamp_labels": 0}}, "clamp_labels is 0; it must be True or False"),
        ({"noise": {"seed": 3}}, "noise has no seed; its values are"),
        ({"noise": {"generator": 3}}, "noise has no generator"),
        ({"noise": {"repeatable": True}}, "noise has no repeatable"),
        ({"noise": None}, "noise a dictionary"),
        ({"noise": [1.0, 1.0]}, "noise a dictionary"),
        ({"classes": 0}, "classes is 0; it must be from 1 to 1000000"),
        ({"classes": 10**12}, "classes is 1000000000000; it must be from 1 to 1000000"),
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
    wire_values = wire(noisy(PATCHES))
    if isinstance(changes.get("noise"), dict):
        changes = {"noise": {**wire_values["noise"], **changes["noise"]}}
    with pytest.raises(ValueError, match=sentence) as caught:
        share_from_wire({**wire_values, **changes}, SHARES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["sigma_s", "sigma_y"])
def test_noise_that_does_not_say_how_much_is_refused(name: str) -> None:
    wire_values = wire(noisy(PATCHES))
    del wire_values["noise"][name]
    with pytest.raises(ValueError, match=f"noise needs {name}"):
        share_from_wire(wire_values, SHARES)


def test_a_noisy_share_has_the_ratio_of_the_one_inside() -> None:
    """What is charged is the ratio of the share inside: no other one can be made up around it."""
    with pytest.raises(ValueError, match="must have one lam and one learns"):
        NoisyShare(lam=0.1, inner=PATCHES, noise=NOISE, classes=L)


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
