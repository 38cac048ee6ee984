"""Attacks on a mixer of somebody's own take back what its server could, or say that they do not."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.knowledge import group_size
from flwr_splitmix.attacks.own_shares import taken_as_sent
from flwr_splitmix.attacks.placing import owners_of
from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.attacks.recording.reader import StepReader
from flwr_splitmix.attacks.recording.steps import Step
from flwr_splitmix.mixers import (
    SHARES,
    FullShare,
    Group,
    Member,
    Mixer,
    Noisy,
    NoisyShare,
    NoMixing,
    PatchCutMix,
    Plan,
    SmashedShape,
    Upload,
)
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.segments import Geometry
from tests.attacks.own_channels import ChannelMix
from tests.attacks.own_signs import KnownSignShare, SignMix, SignShare

B, N, D = 2, 4, 3
SHAPE = SmashedShape(B, N, D)


def sent(mixer: Mixer) -> tuple[Step, Tensor]:
    """Return a step of two clients that send the same smashed data, and these."""
    plan = mixer.plan([0, 1], SHAPE, np.random.default_rng(0))
    smashed = torch.rand(B, N, D) + 1
    uploads = {}
    for client in (0, 1):
        (share,) = plan.shares(client)
        assert share is not None
        uploads[client] = Upload([share.upload(smashed)[0]], torch.zeros(B, dtype=torch.int64))
    return Step(1, 0, plan, uploads), smashed


@dataclass(frozen=True, kw_only=True)
class TurnedShare(FullShare):
    """Half of the patches, turned by a number of places that the server has drawn."""

    name: ClassVar[str] = "turned"
    turn: int

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        upload = smashed.roll(self.turn, 1)[:, : smashed.shape[1] // 2]
        return upload, upload

    def upload_shape(self, smashed: tuple[int, int, int]) -> tuple[int, int, int]:
        return smashed[0], smashed[1] // 2, smashed[2]

    def place(self, mixed: Tensor, upload: Tensor) -> None:
        mixed[:, : upload.shape[1]] += upload

    def pick(self, gradient: Tensor) -> Tensor:
        return gradient[:, : gradient.shape[1] // 2]

    def undo(self, placed: Tensor) -> Tensor:
        return placed.roll(-self.turn, 1)


@pytest.mark.parametrize("adversary", ["server", "eavesdropper"])
def test_who_knows_the_share_takes_back_what_it_tells(adversary: Any) -> None:
    for kind, taken_back in ((SignShare, False), (KnownSignShare, True)):
        step, smashed = sent(SignMix(kind))
        reader = StepReader(SignMix(kind), 2, adversary)
        for release in reader.releases(step):
            assert torch.equal(release.smashed.abs(), smashed / 2)
            assert not torch.equal(release.smashed, smashed / 2)  # what the upper segment gets
            assert (release.undone is not None) == taken_back
            if release.undone is not None:
                assert torch.equal(release.undone, smashed / 2)


def test_a_mask_is_taken_back_with_its_patches() -> None:
    plan = Plan(SHAPE, ((Group((Member(0, TurnedShare(turn=1)),)),),))
    smashed = torch.rand(B, N, D) + 1
    upload = plan.shares(0)[0].upload(smashed)[0]  # type: ignore[union-attr]
    step = Step(1, 0, plan, {0: Upload([upload], torch.zeros(B, dtype=torch.int64))})
    (release,) = StepReader(NoMixing(), 2, "server").releases(step)
    assert release.mask is not None
    assert release.mask[0].tolist() == [True, True, False, False]
    assert release.undone is not None
    assert release.undone_mask is not None
    assert release.undone_mask[0].tolist() == [True, False, False, True]
    mask = release.undone_mask[..., None]
    assert torch.equal(release.undone, smashed * mask)


def test_a_patch_whose_channels_are_of_several_clients_has_no_owner() -> None:
    step, smashed = sent(ChannelMix())
    first, second = StepReader(ChannelMix(), 2, "server").releases(step)
    for release in (first, second):
        assert release.mask is not None
        assert bool(release.mask.all())
        assert release.owners is None
    assert torch.equal(first.smashed + second.smashed, smashed)
    plan = step.plan.passes[0][0]
    assert owners_of(plan.members, SHAPE) is None
    assert owners_of(plan.members[:1], SHAPE) is not None


def test_shares_that_are_not_taken_back_are_named() -> None:
    remark = taken_as_sent([SignShare, KnownSignShare, NoisyShare])
    assert "uploads of SignShare as they were sent" in remark
    assert "override `undo`" in remark
    assert not taken_as_sent([*SHARES, KnownSignShare])


def test_the_size_of_a_group_is_taken_from_its_plans() -> None:
    geometry = Geometry(N, D)
    noisy = Noisy(SignMix(), GaussianNoise(sigma_s=1.0, sigma_y=1.0))
    for mixer, size in ((SignMix(), 2), (noisy, 2), (PatchCutMix(3), 3), (NoMixing(), 1)):
        assert group_size(mixer, geometry, 4) == size
    assert group_size(SignMix(), geometry, 1) == 1


def test_a_recording_reads_the_shares_that_it_was_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step, _ = sent(SignMix())
    trace = DiskTrace(tmp_path / "trace")
    for _ in range(2):
        trace.add(step)
    (again,) = trace.steps()  # by who recorded it
    assert isinstance(again, Step)
    assert again.plan == step.plan
    (again,) = DiskTrace(tmp_path / "trace", shares=SignMix.shares).steps()
    assert isinstance(again, Step)
    assert again.plan == step.plan
    unaware = DiskTrace(tmp_path / "trace")
    with caplog.at_level(logging.WARNING):
        assert not list(unaware.steps())
        assert not list(unaware.steps())
    (warning,) = caplog.messages
    assert "recorded steps with shares 'signs' are left out" in warning
    assert "DiskTrace(shares=...)" in warning
