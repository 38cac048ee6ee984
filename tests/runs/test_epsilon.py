"""Which of a row's columns is its epsilon, and what that covers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flwr_splitmix.runs.epsilon import epsilon_facts, epsilon_of

NONE = {"epsilon": None, "epsilon_covers": None}


@pytest.mark.parametrize(
    ("row", "strategy", "epsilon", "covers"),
    [
        ({"epsilon": 2.0}, "DPCutMixSL", 2.0, "a client's uploads about one record; not"),
        ({"epsilon": 2.0, "train_epsilon": 1.0}, "my own", 2.0, "a client's uploads"),
        ({"epsilon": None, "train_epsilon": 1.0}, "DPForwardSL", 1.0, "a client's messages about"),
        ({"train_epsilon": 0.0}, "DPSGDSL", 0.0, "the weights of a client's head and tail, about"),
        ({"train_epsilon": math.inf}, "DPForwardSL", math.inf, "a client's messages"),
        ({"train_epsilon": 1.0}, "my own", 1.0, "what the clients' own method counts"),
        ({"train_epsilon": 1.0}, None, 1.0, "what the clients' own method counts"),
        ({"train_epsilon": 1.0}, {"name": "x"}, 1.0, "what the clients' own method counts"),
    ],
)
def test_a_rows_epsilon_is_the_ledgers_or_the_clients_own(
    row: dict[str, Any], strategy: Any, epsilon: float, covers: str
) -> None:
    assert epsilon_of(row) == epsilon
    facts = epsilon_facts(row, strategy)
    assert facts["epsilon"] == epsilon
    assert facts["epsilon_covers"].startswith(covers)


@pytest.mark.parametrize("row", [{}, {"epsilon": None}, {"train_epsilon": None, "loss": 1.0}])
def test_without_accounting_there_is_none(row: dict[str, Any]) -> None:
    assert epsilon_facts(row, "SnDSL") == NONE
