"""Law 2 over all mixers: which cases apply follows from what a strategy is made of."""

from __future__ import annotations

import pytest

from flwr_splitmix.testing.laws import check_degenerate_cases
from tests.laws.makers import NAMES, averages, maker, toy_for

UNMIXED = {"PSL": ["one client"], "SFL": ["one client", "all batches", "average"]}


@pytest.mark.parametrize("name", NAMES)
def test_degenerate_cases(name: str) -> None:
    applied = check_degenerate_cases(maker(name), toy_for(name, clients=4))
    assert applied == UNMIXED.get(name, ["average"] if averages(name) else [])
