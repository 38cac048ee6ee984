"""What is said of a plan: how much of a sample it assumes to be sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flwr_splitmix.privacy import GaussianNoise, RandomMasks, Release, ReleasePlan
from flwr_splitmix.privacy.run_plan import ratio_in_words

NOISE = GaussianNoise(sigma_s=1.0, sigma_y=0.5)
RELEASE = Release(noise=NOISE, patches=16, width=192)


@pytest.mark.parametrize(
    ("ratios", "beginning"),
    [
        (0.25, "0.25 of the sample in every pass"),
        ((0.25, 0.5, 0.3), "0.5 to 0.25 of the sample, by pass"),
        (np.array([0.25, 0.5, 0.5]), "0.5 to 0.25 of the sample, by pass"),
        ([0.25, 0.25, 0.25], "0.25 of the sample in every pass"),
        (RandomMasks(alpha=6.0, failure=1e-6), "drawn with alpha 6; more with probability 1e-06, "),
    ],
    ids=str,
)
def test_ratios_are_said_of_every_pass_or_as_the_most_and_the_least(
    ratios: Any, beginning: str
) -> None:
    """A plan may have one ratio for each pass."""
    plan = ReleasePlan(release=RELEASE, passes=3, delta=1e-5, kept=ratios, k=2)
    assert ratio_in_words(plan).startswith(beginning)
