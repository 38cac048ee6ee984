"""The papers' formulas give the papers' numbers, where those can be had from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from flwr_splitmix.privacy.paper import (
    Mechanism,
    PaperSetting,
    paper_corollary1,
    paper_optimal_group_size,
    paper_theorem1,
)

DELTA, CLIENTS = 2e-4, 10
METHODS: tuple[Mechanism, ...] = ("sl", "mix", "cutmix")

TABLE_5: dict[Mechanism, list[float]] = {  # variance x 255 for epsilon 1, 1.5, ..., 5
    "sl": [246, 164, 123, 98.5, 80, 70.5, 61, 55, 49],
    "cutmix": [66, 47, 36, 29, 25, 21, 19, 17, 15],
    "mix": [60, 43, 33, 27, 23, 20, 17, 15, 14],
}


def with_variance(variance: float) -> PaperSetting:
    """Return Table 2's parameters with equal variances."""
    return PaperSetting(sigma_s=math.sqrt(variance), sigma_y=math.sqrt(variance))


def test_table_2() -> None:
    setting = with_variance(1.0)
    assert setting.smashed_term == pytest.approx(0.225)
    assert setting.label_term == pytest.approx(2.0)
    assert setting.offset(DELTA) == pytest.approx(8.5172, abs=5e-5)
    slopes = [paper_theorem1(method, setting, 0.5) for method in METHODS]
    assert slopes == pytest.approx([2.225, 0.55625, 0.6125])


def test_theorem_1_orders_the_methods_with_equality_at_ratio_1_only() -> None:
    setting = with_variance(0.3)
    for ratio in (0.1, 0.5, 0.9):
        sl, mix, cutmix = (paper_theorem1(method, setting, ratio) for method in METHODS)
        assert mix < cutmix < sl
    assert len({round(paper_theorem1(method, setting, 1), 12) for method in METHODS}) == 1


def read_as_table_5(method: Mechanism, variance: float) -> float:
    """Return Theorem 1 alone for k = 2, over ln 10: the reading that comes nearest."""
    return paper_theorem1(method, with_variance(variance), 0.5) / math.log(10)


def test_table_5_under_the_reading_that_comes_nearest() -> None:
    targets = np.arange(1, 5.5, 0.5)
    off = {
        method: np.abs(
            [read_as_table_5(method, v / 255) / e - 1 for v, e in zip(row, targets, strict=True)]
        )
        for method, row in TABLE_5.items()
    }
    assert (off["sl"] < 0.01).sum() == 8
    assert off["sl"][4] == pytest.approx(0.027, abs=0.002)
    assert max(off["mix"].max(), off["cutmix"].max()) < 0.12


def test_the_literal_corollary_has_a_floor_above_table_5() -> None:
    assert paper_corollary1(0.0, with_variance(1.0), DELTA, 2, CLIENTS) == pytest.approx(
        6.909, abs=5e-4
    )


def test_corollary_1_is_its_formula_and_does_not_overflow() -> None:
    setting = with_variance(66 / 255)
    for rdp in (0.0, 3.0, 20.0, 21.6):
        exponent = rdp + setting.offset(DELTA)
        expected = math.log(1 + 0.3 * (math.exp(exponent) - 1))
        assert paper_corollary1(rdp, setting, DELTA, 3, 10) == pytest.approx(expected, rel=1e-12)
    assert paper_corollary1(1e6, setting, DELTA, 3, 10) == pytest.approx(1e6, rel=1e-4)


def test_optimal_group_sizes_need_a_variance_that_is_nowhere_else() -> None:
    setting = with_variance(3.2045e-4)
    assert paper_optimal_group_size("mix", setting, DELTA) == pytest.approx(28.55, abs=0.005)
    assert paper_optimal_group_size("cutmix", setting, DELTA) == pytest.approx(27.07, abs=0.005)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PaperSetting(sigma_s=0, sigma_y=1), "sigma_s is 0"),
        (lambda: PaperSetting(sigma_s=1, sigma_y=1, order=1), "order is 1"),
        (lambda: paper_theorem1("cut", with_variance(1), 0.5), "method is 'cut'"),  # type: ignore[arg-type]
        (lambda: paper_theorem1("sl", with_variance(1), 0.0), "ratio is 0.0"),
        (lambda: paper_corollary1(1, with_variance(1), 1.0, 2, 10), "delta is 1.0"),
        (lambda: paper_corollary1(1, with_variance(1), DELTA, 11, 10), "k is 11"),
        (lambda: paper_optimal_group_size("sl", with_variance(1), DELTA), "method is 'sl'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_input_is_one_sentence(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
