"""The ledger of examples: what a client has spent is never forgotten."""

from __future__ import annotations

import json

import numpy as np
import pytest

from flwr_splitmix.hiding.record_ledger import RecordLedger

BOTH = {"train": 4, "federated": 3}


def charged() -> RecordLedger:
    ledger = RecordLedger()
    ledger.open(BOTH)
    ledger.charge("federated", np.arange(3), 2.0)
    return ledger


def again(before: RecordLedger, examples: dict[str, int]) -> RecordLedger:
    """Return the ledger of a node's next round, whose process is another."""
    ledger = RecordLedger()
    ledger.open(examples)
    ledger.restore(json.loads(json.dumps(before.state())))
    return ledger


def test_a_round_without_the_test_set_forgets_nothing_that_it_cost() -> None:
    """Epsilon fell from 10 to 0 on a node that attached once without its test set."""
    first = charged()
    without = again(first, {"train": 4})
    assert without.epsilon(1e-5) == first.epsilon(1e-5) > 9
    assert without.statement(1e-5) == first.statement(1e-5)
    later = again(without, BOTH)
    later.charge("federated", np.arange(3), 2.0)
    first.charge("federated", np.arange(3), 2.0)
    assert later.epsilon(1e-5) == first.epsilon(1e-5)


def test_public_examples_cost_nothing() -> None:
    ledger = RecordLedger()
    ledger.open({**BOTH, "benchmark": 5})
    ledger.charge("benchmark", np.arange(5), 2.0)
    assert ledger.epsilon(1e-5) == 0


def test_a_ledger_of_other_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="a ledger of 5 values cannot take a state of 3"):
        again(charged(), {"train": 4, "federated": 5})
    without = again(charged(), {"train": 4})
    with pytest.raises(
        ValueError, match="the ledger of federated examples is of 3, but there are 5"
    ):
        without.open({"train": 4, "federated": 5})
    without.open(BOTH)


@pytest.mark.parametrize("damaged", [None, {}, {"book": {}}, {"book": {"smashed": []}}])
def test_a_damaged_state_is_refused(damaged: object) -> None:
    with pytest.raises(ValueError, match=r"federated examples is damaged|at least 1"):
        RecordLedger().restore({"federated": damaged})
