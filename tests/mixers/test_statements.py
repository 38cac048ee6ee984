"""What a kind of share states of its methods is void in a subclass that overrides them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flwr_splitmix.mixers import (
    SHARES,
    FullShare,
    MaskShare,
    NoisyShare,
    PatchShare,
    Share,
    WeightedShare,
)
from flwr_splitmix.privacy import GaussianNoise

N = 8
NOISE = GaussianNoise(sigma_s=1.0, sigma_y=1.0)


class LoudUpload:
    """Mixed in before a share; it is no share itself."""

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        return 100 * smashed, 100 * smashed


def test_the_kinds_of_shares_that_noise_may_be_in_state_that_they_enlarge_nothing() -> None:
    quiet = {kind.name for kind in SHARES if not kind.enlarges}
    assert {"full", "weighted", "patches", "box"} <= quiet
    assert "noisy" not in quiet


@pytest.mark.parametrize("kind", [FullShare, WeightedShare, MaskShare])
@pytest.mark.parametrize("mixed_in", [False, True])
def test_an_upload_of_ones_own_may_enlarge_numbers_unless_it_says_otherwise(
    kind: type[Share], mixed_in: bool
) -> None:
    attributes = {"name": "own", "upload": LoudUpload.upload}
    loud = (
        type("Own", (LoudUpload, kind), {"name": "own"})
        if mixed_in
        else type("Own", (kind,), attributes)
    )
    below = type("Below", (loud,), {"name": "below"})
    stated = type("Stated", (kind,), attributes | {"enlarges": False})
    assert not kind.enlarges
    assert loud.enlarges  # type: ignore[attr-defined]
    assert below.enlarges  # type: ignore[attr-defined]
    assert not stated.enlarges  # type: ignore[attr-defined]


def test_noise_around_an_upload_of_ones_own_has_no_limit_though_its_family_is_stated() -> None:
    class Loud(LoudUpload, FullShare):
        name = "loud"
        family = "full"

    assert math.isinf(NoisyShare.around(Loud(), NOISE, 3).smashed_limit)
    assert math.isfinite(NoisyShare.around(FullShare(), NOISE, 3).smashed_limit)


@pytest.mark.parametrize("method", ["positions", "count"])
@pytest.mark.parametrize("mixed_in", [False, True])
def test_positions_of_ones_own_are_checked(method: str, mixed_in: bool) -> None:
    acts = {"positions": lambda self, batch: torch.tensor([1, 1]), "count": lambda self: 3}
    attributes = {method: acts[method]}
    kind: type[PatchShare] = (
        type("Own", (type("First", (), attributes), PatchShare), {"name": "own"})
        if mixed_in
        else type("Own", (PatchShare,), {"name": "own", **attributes})
    )
    below = type("Below", (kind,), {"name": "below"})
    for each in (kind, below):
        share = each(patches=N, seed=1, start=0, stop=2)
        with pytest.raises(ValueError, match=r"share '(own|below)'"):
            share.upload(torch.ones(2, N, 3))


@pytest.mark.parametrize("kind", [Share, *SHARES])
def test_methods_that_a_kind_says_it_acts_by_are_methods_of_it(kind: type[Share]) -> None:
    assert all(callable(getattr(kind, act)) for act in kind._acts)
