"""The ledgers of a run's clients: what is counted of rounds, and who may charge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from flwr_splitmix.accounting.client_ledgers import ClientLedgers
from flwr_splitmix.description import SplitDescription
from flwr_splitmix.mixers import Share
from flwr_splitmix.observers import Observer, PrivacyLedger
from flwr_splitmix.privacy.events import UNBOUNDED
from tests.observers.ledger_exchanges import DELTA, cost, mask, says


def begin(
    ledgers: ClientLedgers, server_round: int, *clients: int, **fields: Any
) -> Mapping[int, SplitDescription]:
    descriptions = dict.fromkeys(clients, says(server_round, **fields))
    ledgers.begin(server_round, descriptions, {})
    return descriptions


def send(ledgers: ClientLedgers, client: int) -> Sequence[Share | None]:
    shares = ledgers.charge_request(client, [mask(4).to_wire()])
    ledgers.charge(client, shares)
    ledgers.answer(client)
    return shares


def spent(ledgers: ClientLedgers, client: int) -> float:
    return float(ledgers.ledgers[client].spent()[2])


def test_rounds_that_were_begun_and_not_finished_are_counted() -> None:
    ledgers = ClientLedgers(DELTA)
    assert ledgers.unfinished(0) == []
    begin(ledgers, 1, 0, 1)
    send(ledgers, 1)
    ledgers.finish(1, [1])
    begin(ledgers, 2, 0)
    ledgers.finish(2, [])
    begin(ledgers, 3, 0, 1, **{"state-round": 0})
    for _ in range(2):
        send(ledgers, 1)
    ledgers.finish(3, [1])
    assert [ledgers.unfinished(client) for client in (0, 1)] == [[], [1, 2]]
    begin(ledgers, 4, 0, 1, **{"state-round": 0})
    ledgers.finish(4, [])
    assert [ledgers.unfinished(client) for client in (0, 1)] == [[], []]


def test_a_round_that_is_drawn_again_before_its_first_batch_is_charged_once() -> None:
    """A third-party mixer begins again if too few of its clients have data, and nothing is sent."""
    ledgers = ClientLedgers(DELTA)
    begin(ledgers, 1, 0)
    send(ledgers, 0)
    ledgers.finish(1, [])
    for _ in range(3):
        begin(ledgers, 2, 0)
        assert ledgers.unfinished(0) == []
    send(ledgers, 0)
    assert ledgers.unfinished(0) == [1]
    assert spent(ledgers, 0) == pytest.approx(cost(4))  # the second of three batches of one pass


def test_a_request_charges_earlier_attempts_and_returns_the_shares_of_the_batch() -> None:
    ledgers = ClientLedgers(DELTA)
    descriptions = begin(ledgers, 1, 0)
    ledgers.note_interrupted([0])
    assert ledgers.statements()[0].unbounded_because == (UNBOUNDED["owed"],)
    ledgers.begin(1, descriptions, {0: [1]})
    assert ledgers.charge_request(0, [mask(4).to_wire(), None]) == [mask(4), None]
    assert ledgers.statements()[0].unbounded_because == ()
    assert spent(ledgers, 0) == pytest.approx(2 * cost(8))  # everything, in both passes


def test_the_ledger_of_a_strategy_offers_nothing_that_charges() -> None:
    """A strategy that could charge could change its run's epsilon."""
    public = {name for name in vars(PrivacyLedger) if not name.startswith("_")}
    events = {name for name in vars(Observer) if not name.startswith("_")}
    reads = {"delta", "relation", "ledgers", "epsilons", "statements", "report", "account"}
    assert PrivacyLedger.__bases__ == (Observer,)
    assert public - events == reads
    ledger: Any = PrivacyLedger(DELTA)
    for name in ("delta", "relation", "ledgers", "epsilons"):
        with pytest.raises(AttributeError):
            setattr(ledger, name, None)
