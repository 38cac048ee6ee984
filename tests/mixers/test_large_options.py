"""Whole numbers as options, of a size that integers of NumPy and torch do not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flwr_splitmix.mixers import (
    Mixer,
    Mixup,
    PatchCutMix,
    RandomCutout,
    SmashedShape,
    VanillaCutMix,
)

SHAPE = SmashedShape(2, 4, 3)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Mixup, {"alpha": 2**64}),
        (PatchCutMix, {"alpha": 2**64}),
        (RandomCutout, {"alpha": 2**64}),
        (VanillaCutMix, {"beta": 2**64}),
    ],
)
def test_a_mixer_draws_with_them(kind: type[Mixer], options: dict[str, Any]) -> None:
    """A server that another dials in to may send them."""
    plan = kind(**options).plan(range(2), SHAPE, np.random.default_rng(0))
    assert plan.passes


@pytest.mark.parametrize(
    ("kind", "name"),
    [(Mixup, "alpha"), (PatchCutMix, "alpha"), (RandomCutout, "alpha"), (VanillaCutMix, "beta")],
)
def test_those_beyond_all_floats_are_refused(kind: type[Mixer], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is more than .*; it must be a number that a"):
        kind(**{name: 10**400})
