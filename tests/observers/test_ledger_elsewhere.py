"""What the server shows of a mixer's ledger: the number as it was told, and infinity for gaps."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from flwr_splitmix.description import Description
from flwr_splitmix.events import RoundBegun, RoundDone
from flwr_splitmix.observers import LedgerElsewhere
from flwr_splitmix.observers.metrics import row_of
from flwr_splitmix.privacy import RunAccount
from flwr_splitmix.privacy.events import OUTSIDE, UNBOUNDED


def account(epsilon: float, *rounds: int, unbounded: Sequence[str] = ()) -> RunAccount:
    because = tuple(UNBOUNDED[key] for key in unbounded)
    return RunAccount(
        epsilon=epsilon,
        unbounded_because=because,
        outside=(OUTSIDE["gradients"],),
        rounds=frozenset(rounds),
    )


def begin(ledger: LedgerElsewhere, server_round: int, nodes: Sequence[int] = (0, 1)) -> None:
    descriptions = {-1: Description(num_examples=12)}
    ledger.on_begin(RoundBegun(server_round, {}, False, descriptions, nodes=nodes))


def end(ledger: LedgerElsewhere, server_round: int, failures: Sequence[int] = ()) -> RoundDone:
    event = RoundDone(
        server_round=server_round,
        num_rounds=9,
        seconds=1.0,
        steps=1,
        step_seconds=1.0,
        clients_alive=2,
        failures=dict.fromkeys(failures, "gone"),
        epsilon=ledger.epsilon,
    )
    ledger.on_round(event)
    return event


def test_it_shows_what_it_was_told() -> None:
    ledger = LedgerElsewhere(1e-5)
    assert (ledger.report(), ledger.epsilon) == ("nothing was released", 0.0)
    for server_round in (1, 2):
        begin(ledger, server_round)
        ledger.receive_account(account(server_round + 0.5, *range(1, server_round + 1)))
        row = row_of(end(ledger, server_round))
        assert row["epsilon"] == server_round + 0.5
        assert "epsilon_by_client" not in row
    sentence = (
        "the client that spent most, by the mixer's ledger, of mixtures alone: epsilon 2.5 at "
        "delta 1e-05 when a record is replaced. Not covered: gradients sent to clients"
    )
    assert ledger.facts() == {"privacy": sentence, "epsilon": 2.5}


@pytest.mark.parametrize(
    ("rounds", "lacks"),
    [
        ((4,), "rounds 1 to 3"),
        ((1, 3, 4), "round 2"),
        ((2, 3), "rounds 1, 4"),
        ((), "rounds 1 to 4"),
    ],
)
def test_a_round_that_the_account_lacks_makes_epsilon_infinite(
    rounds: Sequence[int], lacks: str
) -> None:
    ledger = LedgerElsewhere()
    for server_round in (1, 2, 3, 4):
        begin(ledger, server_round)
    ledger.receive_account(account(0.5, *rounds))
    assert ledger.epsilon == math.inf
    assert f"no epsilon: the mixer's ledger lacks {lacks};" in ledger.report()
    assert ledger.facts()["epsilon"] == "inf"
    # Of more rounds than it began the mixer may know: this server was started again.
    ledger.receive_account(account(0.5, 1, 2, 3, 4, 5))
    assert ledger.epsilon == 0.5


def test_a_round_without_a_word_from_the_mixer_is_unknown() -> None:
    ledger = LedgerElsewhere()
    begin(ledger, 1)
    assert ledger.epsilon == math.inf
    assert "the mixer's ledger lacks round 1;" in ledger.report()


def test_why_the_mixers_ledger_has_no_bound_stands_beside_what_it_lacks() -> None:
    ledger = LedgerElsewhere()
    begin(ledger, 1)
    begin(ledger, 2)
    ledger.receive_account(account(math.inf, 2, unbounded=["clip"]))
    assert "begins a new one; no clipping of the smashed data" in ledger.report()


def test_words_are_logged_when_they_change(caplog: pytest.LogCaptureFixture) -> None:
    ledger = LedgerElsewhere()

    def logged(server_round: int, *rounds: int) -> list[str]:
        caplog.clear()
        begin(ledger, server_round)
        ledger.receive_account(account(1.0, *rounds))
        with caplog.at_level("INFO", logger="flwr.splitmix"):
            end(ledger, server_round)
        return [record.getMessage() for record in caplog.records]

    assert logged(1, 1) == [f"privacy of {ledger.report()}"]
    assert logged(2, 1, 2) == []
    assert logged(3, 3) == [f"privacy of {ledger.report()}"]
    assert caplog.records[0].levelname == "WARNING"  # rounds 1 and 2 are not in the account
    assert logged(4, 3) == [f"privacy of {ledger.report()}"]
    assert caplog.records[0].levelname == "INFO"


@pytest.mark.parametrize("epsilon", [1.5, math.inf])
@pytest.mark.parametrize("has_account", [False, True])
def test_a_restored_one_goes_on_where_it_was(has_account: bool, epsilon: float) -> None:
    ledger = LedgerElsewhere()
    begin(ledger, 1, nodes=(0, 3))
    if has_account:
        ledger.receive_account(account(epsilon, 1))
    state: dict[str, Any] = json.loads(json.dumps(ledger.state(), allow_nan=False))
    other = LedgerElsewhere()
    other.restore(state)
    assert other.state() == ledger.state()
    assert (other.epsilon, other.report()) == (ledger.epsilon, ledger.report())


@pytest.mark.parametrize(
    "wrong", [{"delta": 0.0}, {"delta": math.nan}, {"relation": "none"}], ids=str
)
def test_what_no_ledger_can_be_asked_for_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must lie strictly between|must be one of"):
        LedgerElsewhere(**wrong)
