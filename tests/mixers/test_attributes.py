"""A wrong attribute of somebody's own mixer is named before anything is asked of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from flwr_splitmix.mixers import FullShare, Mixer, NoMixing
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.testing import laws
from flwr_splitmix.testing.toy import Toy


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"cover": "some"}, ValueError, "Own: cover is 'some'; it must be one of partition"),
        ({"regroup": "round"}, ValueError, "Own: regroup is 'round'; it must be one of step"),
        ({"positions": "lower"}, ValueError, "Own: positions is 'lower'; it must be None or 'up"),
        ({"min_members": "2"}, ValueError, "Own: min_members is '2'; it must be a whole number"),
        ({"k": 2.0}, ValueError, "Own: k is 2.0; it must be a whole number"),
        ({"min_patches": -1}, ValueError, "Own: min_patches is -1; it must be at least 0"),
        ({"k_times": 1}, ValueError, "Own: k_times is 1; "),
        ({"mask_per_sample": None}, ValueError, "Own: mask_per_sample is None; "),
        ({"shares": FullShare}, TypeError, "Own: shares is <class"),
        ({"shares": (FullShare(),)}, TypeError, "expected a tuple of classes of Share"),
        (
            {"plan": lambda self, members, shape, rng: None},
            TypeError,
            "Own: `plan` cannot be called so (too many positional arguments); it takes (members,",
        ),
    ],
)
def test_the_attributes_of_a_mixer(
    attributes: dict[str, Any], error: type[Exception], message: str
) -> None:
    mixer: Mixer = type("Own", (NoMixing,), attributes)()
    with pytest.raises(error, match=re.escape(message)):
        SplitStrategy(Toy().upper(), mixer=mixer)
    for law in (laws.check_masks_partition, laws.check_families):
        with pytest.raises(error, match=re.escape(message)):
            law(mixer)
