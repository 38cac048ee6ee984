"""Law 4 rests on the comparison of two runs: it must see every difference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from flwr_splitmix.testing.laws import Results, check_same_results

ROW: dict[str, Any] = {"round": 1, "loss": 0.5, "accuracy": None, "steps": 3, "seconds": 1.0}


def results(**changes: Any) -> Results:
    weight = torch.tensor([1.0, changes.pop("weight", 2.0)], dtype=torch.float64)
    return Results([{**ROW, **changes}], {"weight": weight})


def test_times_may_differ() -> None:
    check_same_results(results(), results(seconds=9.0))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"loss": 0.5 + 1e-12}, "round 1: loss is 0.5 in one run"),
        ({"loss": math.nan}, "loss is 0.5 in one run and nan"),
        ({"accuracy": 0.1}, "accuracy is None in one run and 0.1"),
        ({"weight": 2.0 + 1e-12}, "weight differs by 1e-12; at most 0 is allowed"),
        ({"weight": math.nan}, "weight differs by nan"),
    ],
)
def test_a_difference_is_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_same_results(results(), results(**changes))


def test_the_tolerance_is_absolute() -> None:
    check_same_results(results(), results(weight=2.0 + 1e-7, loss=0.5 + 1e-7), tolerance=1e-6)
    with pytest.raises(AssertionError, match="at most 1e-06 is allowed"):
        check_same_results(results(), results(weight=2.0 + 1e-5), tolerance=1e-6)


def test_rounds_and_names_must_be_the_same() -> None:
    with pytest.raises(AssertionError, match="one run has 1 round, the other 0"):
        check_same_results(results(), Results([], results().tensors))
    with pytest.raises(AssertionError, match="only one side has bias"):
        check_same_results(results(), Results([ROW], {"bias": torch.zeros(2)}))
