"""Law 2 over all strategies: which cases apply follows from what a strategy is made of."""

from __future__ import annotations

import pytest

from flwr_splitmix.testing.laws import Toy, check_degenerate_cases
from tests.laws.makers import NAMES, maker

CASES = {
    "PSL": ["one client"],
    "SFL": ["one client", "all batches", "average"],
    "CutMixSFL": ["average"],
    "BlockCutMix": ["average"],
}


@pytest.mark.parametrize("name", NAMES)
def test_degenerate_cases(name: str) -> None:
    applied = check_degenerate_cases(maker(name), Toy(clients=4))
    assert applied == CASES.get(name, [])
