"""Single values of options: what is a number, a truth value or a choice."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from flwr_splitmix.values import (
    check_choice,
    check_kind,
    check_truth,
    options_of,
    real_number,
    whole_number,
)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int64(2), Fraction(2)])
def test_numbers_of_any_kind_are_numbers(value: Any) -> None:
    number = real_number("alpha", value)
    assert (number, type(number)) == (2.0, float)


def test_ranges_are_left_to_the_caller() -> None:
    assert math.isnan(real_number("alpha", math.nan))


@pytest.mark.parametrize("value", ["2", None, True, 2j, [2], np.array([2.0])])
def test_nothing_else_is_a_number(value: Any) -> None:
    with pytest.raises(ValueError, match=r"alpha is .*; it must be a number"):
        real_number("alpha", value)


@pytest.mark.parametrize("value", [3, np.int64(3)])
def test_whole_numbers_have_a_least(value: Any) -> None:
    number = whole_number("k", value, least=3)
    assert (number, type(number)) == (3, int)
    with pytest.raises(ValueError, match="k is 3; it must be at least 4"):
        whole_number("k", value, least=4)


@pytest.mark.parametrize("value", [3.0, "3", None, True])
def test_nothing_else_is_a_whole_number(value: Any) -> None:
    with pytest.raises(ValueError, match=r"k is .*; it must be a whole number"):
        whole_number("k", value)


@pytest.mark.parametrize("value", ["no", 0, 1, None])
def test_only_truth_values_are_true_or_false(value: Any) -> None:
    with pytest.raises(ValueError, match=r"k_times is .*; it must be True or False"):
        check_truth("k_times", value)
    check_truth("k_times", True)


def test_choices_are_listed() -> None:
    with pytest.raises(ValueError, match="regroup is 3; it must be one of step, epoch"):
        check_choice("regroup", 3, ("step", "epoch"))
    check_choice("regroup", "step", ("step", "epoch"))


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "run is None; expected a text"),
        ("x", "run is 'x'; expected a text"),
        (3.0, "run is a float; expected a text"),
        (int, "run is the class int; expected an object, int"),
    ],
)
def test_objects_of_another_kind_are_named(value: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        check_kind("run", value, int, "a text")


@dataclass
class Inner:
    """Options within options."""

    sizes: tuple[int, ...] = (1, 2)
    tensor: Any = None


class Made:
    """Keeps most of its options."""

    def __init__(self, k: int, alpha: float, inner: Inner, data: object, lost: int = 0) -> None:
        self.k, self.alpha, self.inner, self.data = k, alpha, inner, data
        self.other = 3


def test_options_are_what_an_object_keeps_of_its_parameters() -> None:
    options = options_of(Made(2, math.inf, Inner(tensor=np.zeros(2)), object()))
    assert options == {"k": 2, "alpha": "inf", "inner": {"sizes": [1, 2]}}
    assert json.loads(json.dumps(options, allow_nan=False)) == options
    assert options_of(3) == options_of(None) == {}
