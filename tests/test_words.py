"""Numbers in words."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_splitmix.words import epsilon_text, listed, rounded_up, verb


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


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, ""), (1, "0"), (2, "0 and 1"), (3, "0, 1 and 2"), (4, "0, 1, 2 and 1 more"),
     (9, "0, 1, 2 and 6 more")],
)  # fmt: skip
def test_the_first_of_many_names_are_said_and_how_many_more_there_are(
    count: int, text: str
) -> None:
    assert listed(range(count), most=3) == text


def test_a_verb_agrees_with_its_number() -> None:
    """Of several clients "each of clients 0, 1 has" would be wrong."""
    assert [verb(1, plural) for plural in ("are", "were", "have", "send")] == [
        *("is", "was", "has", "sends")
    ]
    assert verb(0, "have") == verb(2, "have") == "have"
