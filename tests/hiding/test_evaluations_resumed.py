"""The ledger of test texts over interruptions: an evaluation is remembered as a round is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import DPForwardSL
from flwr_splitmix.testing.toy_texts import text_toy


def epsilon_after(parts: Sequence[int], home: Path) -> float:
    """Run to each number of rounds with new clients; return the client's own epsilon."""
    run_id = Run.create({}, name="x", home=home).id
    for rounds in parts:
        toy = text_toy("DPForwardSL", clients=1, tests=6)
        strategy = DPForwardSL(
            toy.server(),
            device="cpu",
            steps_per_round=1,
            evaluation="federated",
            seed=1,
            run=Run.open(run_id, home=home),
        )
        (client,) = toy.clients_for(strategy)
        strategy.fit([client], rounds)
    epsilon = client.epsilon
    assert epsilon is not None
    return epsilon


@pytest.mark.parametrize("parts", [[2, 4], [1, 2, 3, 4]])
def test_evaluations_before_an_interruption_are_in_the_ledger(
    parts: Sequence[int], tmp_path: Path
) -> None:
    """The state that a round keeps must not lack the evaluation after it: 12.3 instead of 19.1."""
    assert epsilon_after(parts, tmp_path) == epsilon_after([4], tmp_path)
