"""The ledger of examples: what a client has spent is never forgotten."""

from __future__ import annotations

import json
import math
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flwr_splitmix.data.examples import fetch
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import DPSGD, ClientSide
from flwr_splitmix.hiding.record_ledger import RecordLedger
from flwr_splitmix.privacy.covering_noise import CoveringNoise
from flwr_splitmix.privacy.events import UNBOUNDED
from tests.hiding.dp_sgd import ORDER, TOY, step

BOTH = {"train": 4, "federated": 3}
TWICE = CoveringNoise(sigma=1.0, moved=2.0, bound=1.0)
"""Whose standard deviation is half of what replacing an example moves."""


def charged() -> RecordLedger:
    ledger = RecordLedger()
    ledger.open(BOTH)
    ledger.charge("federated", np.arange(3), TWICE)
    return ledger


def again(before: RecordLedger, examples: dict[str, int]) -> RecordLedger:
    """Return the ledger of a node's next round, whose process is another."""
    ledger = RecordLedger()
    ledger.open(examples)
    ledger.restore(json.loads(json.dumps(before.state())))
    return ledger


def test_a_round_without_the_test_set_forgets_nothing_that_it_cost() -> None:
    """Otherwise epsilon would fall on a node that attaches once without its test set."""
    first = charged()
    without = again(first, {"train": 4})
    assert without.epsilon(1e-5) == first.epsilon(1e-5) > 9
    assert without.statement(1e-5) == first.statement(1e-5)
    later = again(without, BOTH)
    later.charge("federated", np.arange(3), TWICE)
    first.charge("federated", np.arange(3), TWICE)
    assert later.epsilon(1e-5) == first.epsilon(1e-5)


def test_a_release_whose_noise_hides_nothing_leaves_no_epsilon_for_ever() -> None:
    faint = CoveringNoise(sigma=1e-9, moved=2.0, bound=1.0)
    ledger = charged()
    ledger.charge("train", np.arange(2), faint)
    for each in (ledger, again(ledger, BOTH)):
        assert each.epsilon(1e-5) == math.inf
        assert each.statement(1e-5).unbounded_because == (UNBOUNDED["resolution"],)


def test_public_examples_cost_nothing() -> None:
    ledger = RecordLedger()
    ledger.open({**BOTH, "benchmark": 5})
    ledger.charge("benchmark", np.arange(5), TWICE)
    assert ledger.epsilon(1e-5) == 0


def test_a_ledger_of_other_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="a ledger of 5 values cannot take a state of 3"):
        again(charged(), {"train": 4, "federated": 5})
    without = again(charged(), {"train": 4})
    with pytest.raises(ValueError, match="the ledger of federated examples is for 3, but got 5"):
        without.open({"train": 4, "federated": 5})
    without.open(BOTH)


@pytest.mark.parametrize("damaged", [None, {}, {"book": {}}, {"book": {"smashed": []}}])
def test_a_damaged_state_is_refused(damaged: object) -> None:
    with pytest.raises(ValueError, match=r"federated examples is damaged|at least 1"):
        RecordLedger().restore({"federated": damaged})


BATCHES = ([0, 1, 2, 3], [3, 0, 0, 1], [2, 2, 2, 1], [1] * 7 + [2] * 5)


def repeated(records: np.ndarray) -> np.ndarray:
    """Return a batch's examples, each as often as the square of its number of copies."""
    examples, copies = np.unique(records, return_counts=True)
    return np.repeat(examples, copies**2)


@pytest.mark.parametrize("shift", [2.0, 2 / 1.3, 0.37])
def test_the_square_of_its_copies_costs_as_much_as_that_many(shift: float) -> None:
    """To the last bit where no sum is rounded: of single copies, or a cost of a few binary digits.

    Else it is the more exact of the two, which is rounded once.
    """
    ledger, before = RecordLedger(), RecordLedger()
    for one in (ledger, before):
        one.open(BOTH)
    noise = CoveringNoise(sigma=1.0, moved=shift, bound=1.0)
    for batch in map(np.array, BATCHES):
        ledger.charge("train", batch, noise, power=2)
        before.charge("train", repeated(batch), noise)
        state, expected = ledger.state()["train"], before.state()["train"]
        assert state["book"]["smashed"] == pytest.approx(expected["book"]["smashed"], rel=1e-14)
        assert (state["releases"], state["notes"]) == (expected["releases"], expected["notes"])
        if shift == 2.0 or len(set(batch)) == len(batch):
            assert state["book"] == expected["book"]


@pytest.mark.fresh_secrets
@pytest.mark.parametrize("power", [1, 2])
def test_batches_of_earlier_attempts_cost_as_much_as_batches_that_are_sent(power: int) -> None:
    """Of copies within one, too: their sum moves by as many times an example's share."""
    batches = [np.array(batch) for batch in BATCHES]
    nothing = nn.Identity()
    side = ClientSide(nothing, nothing, torch.device("cpu"), 3, 4, 0, 0, earlier=batches)
    earlier_ledger, sent_ledger = RecordLedger(), RecordLedger()
    for ledger in (earlier_ledger, sent_ledger):
        ledger.open(BOTH)
    earlier_ledger.charge_earlier(side, TWICE, power=power)
    for batch in batches:
        sent_ledger.charge("train", batch, TWICE, power=power)
    books = [ledger.state()["train"]["book"]["smashed"] for ledger in (earlier_ledger, sent_ledger)]
    assert books[0] == pytest.approx(books[1], rel=1e-14)
    copies = [np.bincount(batch, minlength=4) ** power for batch in batches]
    assert books[0] == pytest.approx((2.0 * np.sum(copies, axis=0)).tolist(), rel=1e-14)


def test_copies_of_one_text_in_a_batch_take_no_memory_of_their_own() -> None:
    """Listed as often as it costs, it would take 34 GB in a batch of 65,536."""
    toy = replace(TOY, hiding=DPSGD)
    (client,) = toy.clients_for()
    client.attach(ORDER, None)
    hiding: Any = client.hiding
    batch = MaskedBatch.of(fetch(client.batches.data, np.arange(2)), client.device)
    tracemalloc.start()
    try:
        step(client, batch, toy.server(), np.zeros(3000, dtype=np.int64))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert hiding.ledger.epsilon(1e-5) > 1000
    assert peak < 20e6


@pytest.mark.fresh_secrets
def test_what_earlier_attempts_sent_is_charged_once_in_a_round_with_its_training_examples() -> None:
    """The ledger remembers whether it is, so that no hiding has to."""
    nothing, batch = nn.Identity(), np.array([0, 1])
    side = ClientSide(
        nothing, nothing, torch.device("cpu"), 3, 4, 0, 0, examples=BOTH, attempt=1, earlier=[batch]
    )
    ledger = RecordLedger()

    def spent() -> float:
        return float(ledger._ledgers["train"].spent()[2])

    ledger.begin_round(side, TWICE)
    ledger.charge("federated", batch, TWICE)
    assert spent() == 0
    for times in (2, 3):
        ledger.charge("train", batch, TWICE)
        ledger.pay_owed()
        assert spent() == pytest.approx(times * 2.0)
