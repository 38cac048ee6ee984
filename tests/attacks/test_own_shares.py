"""Attacks on a mixer of somebody's own take back what its server could, or say that they do not."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from flwr_splitmix.attacks.bench import group_size
from flwr_splitmix.attacks.own_shares import taken_as_sent
from flwr_splitmix.attacks.steps import Step, StepReader
from flwr_splitmix.attacks.trace import DiskTrace
from flwr_splitmix.mixers import (
    Mixer,
    Noisy,
    NoMixing,
    PatchCutMix,
    Shuffled,
    SmashedShape,
    Upload,
)
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.segments import Geometry
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


@pytest.mark.parametrize("adversary", ["server", "eavesdropper"])
def test_who_knows_the_share_takes_back_what_it_tells(adversary: str) -> None:
    for kind, taken_back in ((SignShare, False), (KnownSignShare, True)):
        step, smashed = sent(SignMix(kind))
        reader = StepReader(SignMix(kind), 2, adversary)  # type: ignore[arg-type]
        for release in reader.releases(step):
            assert torch.equal(release.smashed, smashed / 2) == taken_back
            assert torch.equal(release.smashed.abs(), smashed / 2)


def test_shares_that_are_not_taken_back_are_named() -> None:
    remark = taken_as_sent(SignMix())
    assert "uploads of SignShare as they were sent" in remark
    assert "override `undo`" in remark
    noise = GaussianNoise(sigma_s=1.0, sigma_y=1.0)
    assert taken_as_sent(Noisy(SignMix(), noise)) == remark
    for known in (NoMixing(), PatchCutMix(2), Shuffled(PatchCutMix(2))):
        assert not taken_as_sent(known)


def test_the_size_of_a_group_is_taken_from_its_plans() -> None:
    geometry = Geometry(N, D)
    assert group_size(SignMix(), geometry) == 2
    assert group_size(Noisy(SignMix(), GaussianNoise(sigma_s=1.0, sigma_y=1.0)), geometry) == 2
    assert group_size(PatchCutMix(3), geometry) == 3
    assert group_size(NoMixing(), geometry) == 1


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
    (said,) = caplog.messages
    assert "recorded steps with shares 'signs' are left out" in said
    assert "DiskTrace(shares=...)" in said
