"""Numbers in words."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_splitmix.words import epsilon_text, rounded_up


@given(st.floats(1e-300, 1e300), st.integers(1, 9))
def test_a_bound_that_is_shown_is_the_next_that_is_not_below(number: float, digits: int) -> None:
    shown = float(rounded_up(number, digits))
    assert number <= shown <= number * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)
    assert rounded_up(shown, digits) == rounded_up(number, digits)


@pytest.mark.parametrize(
    ("epsilon", "shown"),
    [(3.0, "3"), (3.0000048, "3.001"), (0.00004, "4e-05"), (12345.6, "1.235e+04"), (0, "0"),
     (math.inf, "inf")],
)  # fmt: skip
def test_an_epsilon_has_four_digits(epsilon: float, shown: str) -> None:
    assert epsilon_text(epsilon) == shown
