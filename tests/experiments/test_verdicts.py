"""Verdicts on a claim: by means over common seeds, with what the claim allows."""

from __future__ import annotations

import pytest

from flwr_splitmix.experiments.verdicts import BySeed, common_seeds, judged

ONE: BySeed = {0: 40.0, 1: 50.0}


@pytest.mark.parametrize(
    ("low", "high", "slack", "verdict", "margin"),
    [
        (ONE, {0: 42.0}, 0.0, "agrees", 2.0),
        ({0: 42.0}, ONE, 0.0, "disagrees", -2.0),
        (ONE, {1: 48.0, 0: 41.0}, 0.0, "disagrees", -0.5),
        (ONE, {0: 38.0}, 5.0, "agrees", 3.0),
        (ONE, {0: 40.0}, 0.0, "disagrees", 0.0),
        (ONE, {2: 42.0, 3: 44.0}, 0.0, "disagrees", -2.0),
    ],
)
def test_means_are_over_the_seeds_that_both_have(
    low: BySeed, high: BySeed, slack: float, verdict: str, margin: float
) -> None:
    judgement, by = judged(low, high, slack)
    assert judgement == verdict
    assert by == pytest.approx(margin)


def test_a_place_without_values_is_not_judged() -> None:
    assert judged(ONE, {}) == judged({}, ONE) == ("not run", None)
    assert common_seeds({3: 1.0, 1: 1.0}, {1: 2.0, 3: 2.0, 4: 2.0}) == [1, 3]
