"""Ledgers of which a run has finished rounds that they did not observe."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from flwr_splitmix.events import RoundsMissed
from flwr_splitmix.observers import LedgerElsewhere, PrivacyLedger
from flwr_splitmix.privacy.events import UNBOUNDED
from tests.observers import test_ledger_elsewhere as elsewhere
from tests.observers.ledger_exchanges import DELTA, begin, mask, send

MISSED = UNBOUNDED["missed"]


def restored(ledger: PrivacyLedger | LedgerElsewhere, into: Any) -> Any:
    into.restore(json.loads(json.dumps(ledger.state(), allow_nan=False)))
    return into


def test_those_who_took_part_have_no_epsilon_and_others_keep_theirs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, clients=(0, 1))
    for client in (0, 1):
        send(ledger, mask(4), client=client)
    before = ledger.epsilons
    ledger.on_missed(RoundsMissed(range(2, 3), {1, 7}))
    assert ledger.epsilons == {0: before[0], 1: math.inf, 7: math.inf}
    assert ledger.ledgers[1].releases == 1
    assert f"no epsilon: {MISSED}" in ledger.report()
    assert ledger.ledgers[7].statement(DELTA).smashed == math.inf
    (record,) = caplog.records
    assert record.getMessage().startswith("round 2 of this run had no noise")
    again = restored(ledger, PrivacyLedger(DELTA))
    begin(again, 3, clients=(2,))
    assert again.epsilons == {0: before[0], 1: math.inf, 2: 0.0, 7: math.inf}


def test_a_mixers_account_is_no_number_for_rounds_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = LedgerElsewhere(DELTA)
    ledger.on_missed(RoundsMissed(range(1, 4), {0}))
    assert caplog.records[0].getMessage().startswith("rounds 1 to 3 of this run had no noise")
    elsewhere.begin(ledger, 4)
    ledger.receive_account(elsewhere.account(2.0, 4))
    for each in (ledger, restored(ledger, LedgerElsewhere(DELTA))):
        assert each.epsilon == math.inf
        assert f"no epsilon: {MISSED}. Not covered" in each.report()
        assert "lacks" not in each.report()


def test_a_mixers_account_of_another_relation_is_not_taken() -> None:
    ledger = LedgerElsewhere(DELTA)
    with pytest.raises(ValueError, match="relation 'add-remove' cannot take a state of relation"):
        restored(ledger, LedgerElsewhere(DELTA, relation="add-remove"))


@pytest.mark.parametrize("kind", [PrivacyLedger, LedgerElsewhere])
def test_a_ledgers_state_that_lacks_anything_is_refused(
    kind: type[PrivacyLedger | LedgerElsewhere],
) -> None:
    """It would say: no missed rounds, mixtures told apart, the same relation."""
    state = kind(DELTA).state()
    for key in state:
        with pytest.raises(KeyError, match=key):
            kind(DELTA).restore({name: state[name] for name in state if name != key})


@pytest.mark.parametrize(
    ("reasons", "because"),
    [
        (["plain"], "plain"),
        (("sigma_s", "clip"), "clip"),
        (["another version's"], "unknown"),
    ],
)
def test_what_a_client_has_sent_before_without_an_epsilon_leaves_none(
    reasons: Any, because: str
) -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, described={"unbounded": reasons})
    assert ledger.epsilons == {0: math.inf}
    assert UNBOUNDED[because] in ledger.report()


@pytest.mark.parametrize("reasons", [None, []])
def test_who_names_no_reason_has_an_epsilon(reasons: Any) -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, described={"unbounded": reasons})
    assert ledger.epsilons == {0: 0.0}
