"""The server's ledger: costs of uploads, passes and lost rounds, and its checkpoints."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

import pytest

from flwr_splitmix.events import Exchange
from flwr_splitmix.mixers import (
    FullShare,
)
from flwr_splitmix.observers import PrivacyLedger
from tests.observers.ledger_exchanges import (
    DELTA,
    E_S,
    E_Y,
    FULL,
    begin,
    cost,
    end,
    evaluate,
    mask,
    noisy,
    send,
    spent,
)


def test_a_pass_costs_its_worst_batch_and_passes_add() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger)
    for count in (2, 5, 3, 1, 4):  # three batches a pass
        send(ledger, mask(count))
    assert spent(ledger) == pytest.approx(cost(5) + cost(4))
    end(ledger, 1)
    begin(ledger, 2)
    send(ledger, mask(8))  # the third batch of the second pass
    send(ledger, mask(1))
    assert spent(ledger) == pytest.approx(cost(5) + cost(8) + cost(1))


def test_only_what_came_is_charged_and_what_was_asked_moves_the_pass() -> None:
    """A client that refuses has drawn its batch, and sent nothing."""
    ledger = PrivacyLedger(DELTA)
    begin(ledger)
    send(ledger, mask(4), answers=False)
    ledger.on_exchange(Exchange(1, 0, "step", "up", {"budget-spent": True}, 0))
    assert spent(ledger) == 0
    for _ in range(3):
        send(ledger, mask(4))
    assert spent(ledger) == pytest.approx(2 * cost(4))
    # The end of a round asks for nothing.
    ledger.on_exchange(Exchange(1, 0, "step", "down", {"plan": None}, 0))
    ledger.on_exchange(Exchange(1, 0, "step", "up", {}, 0))
    assert spent(ledger) == pytest.approx(2 * cost(4))


def test_passes_of_one_batch_add_up() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger)
    send(ledger, mask(4), None, mask(3))
    send(ledger, mask(6))
    assert spent(ledger) == pytest.approx(cost(4) + cost(3))


def test_less_than_a_batch_is_drawn_anew_each_time_and_may_be_one_record() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, described={"num-examples": 3})
    send(ledger, mask(4))
    send(ledger, mask(2))
    assert spent(ledger) == pytest.approx(4 * (cost(4) + cost(2)))


def test_a_client_that_lost_a_round_pays_again_and_twice_for_what_counts_as_a_pass() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, 1)
    send(ledger, mask(4))
    begin(ledger, 2, described={"state-round": 0})  # it did not finish round 1
    for _ in range(3):
        send(ledger, mask(2))
    # Three batches from the middle of a pass hold a record twice.
    # What it lost of its own ledger it charges again, with the worst masks.
    lost = FULL
    assert spent(ledger) == pytest.approx(cost(4) + 2 * cost(2) + lost)
    end(ledger, 2)
    begin(ledger, 3)
    send(ledger, mask(1))
    assert spent(ledger) == pytest.approx(cost(4) + 2 * cost(2) + lost + 2 * cost(1))


@pytest.mark.parametrize(("drawn", "copies"), [(0, 1), (1, 2), (3, 1), (4, 2)])
def test_a_ledger_that_meets_a_client_amid_a_pass_counts_a_record_twice(
    drawn: int, copies: int
) -> None:
    """What counts as one pass then spans the end of one and the beginning of the next."""
    ledger = PrivacyLedger(DELTA)
    begin(ledger, described={"drawn": drawn})
    send(ledger, mask(4))
    assert spent(ledger) == pytest.approx(copies * cost(4))


def test_a_ledger_that_knows_a_client_knows_its_passes() -> None:
    ledger = PrivacyLedger(DELTA)
    for server_round in (1, 2):
        begin(ledger, server_round, described={"drawn": server_round - 1})
        send(ledger, mask(4))
        end(ledger, server_round)
    assert spent(ledger) == pytest.approx(cost(4))  # two of the three batches of one pass


def test_a_client_with_other_data_begins_a_new_pass() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, 1)
    for _ in range(4):
        send(ledger, mask(4))
    end(ledger, 1)
    begin(
        ledger, 2, described={"num-examples": 400}
    )  # otherwise its pass would have a lower number
    send(ledger, mask(4))
    assert spent(ledger) == pytest.approx(2 * cost(4) + 2 * cost(4))


def test_a_client_that_was_not_drawn_for_a_round_has_lost_nothing() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, 1, clients=(0, 1))
    send(ledger, mask(4), client=1)
    end(ledger, 1)
    begin(ledger, 2, clients=(0,))
    end(ledger, 2)
    begin(ledger, 3, clients=(0, 1), described={"state-round": 1})
    send(ledger, mask(4), client=1)
    assert spent(ledger, 1) == pytest.approx(cost(4))


@pytest.mark.parametrize(("repeats", "times"), [(False, 2), (True, 0)])
def test_an_earlier_attempt_at_a_round_is_charged_in_full(repeats: bool, times: int) -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, earlier=[1, 1], described={"repeatable-secrets": repeats})
    send(ledger, mask(4), None)
    # Two passes each time, as the plan has: the group may have been a full one.
    assert spent(ledger) == pytest.approx(cost(4) + times * 2 * FULL)
    send(ledger, mask(4), None)  # the second batch of the pass
    assert spent(ledger) == pytest.approx(cost(4) + times * 2 * FULL)


@pytest.mark.parametrize(
    ("drawn", "length", "times"), [(0, 3, 1), (0, 4, 2), (2, 1, 1), (2, 2, 2), (1, 9, 4), (5, 0, 0)]
)
def test_an_earlier_attempt_is_charged_for_all_the_passes_that_it_touched(
    drawn: int, length: int, times: int
) -> None:
    """Passes are of three batches, and this round has one batch."""
    ledger = PrivacyLedger(DELTA)
    begin(ledger, described={"drawn": drawn}, earlier=[length])
    send(ledger, mask(4), answers=False)
    end(ledger, 1)
    assert spent(ledger) == pytest.approx(times * FULL)
    begin(ledger, 2, described={"drawn": drawn + 1})
    send(ledger, mask(4), answers=False)
    assert spent(ledger) == pytest.approx(times * FULL)


def test_an_attempt_that_no_plan_has_priced_is_charged_later() -> None:
    """A round that leaves a client out of all of its groups asks it for nothing."""
    ledger = PrivacyLedger(DELTA)
    begin(ledger, earlier=[3])
    end(ledger, 1)
    begin(ledger, 2, described={"drawn": 0})
    send(ledger, mask(4))
    assert spent(ledger) == pytest.approx(cost(4) + FULL)


def test_an_attempt_of_unknown_length_has_no_epsilon() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, earlier=[None, 3])
    send(ledger, mask(4))
    assert ledger.epsilons == {0: math.inf}
    assert "length, mixer or noise is not known" in ledger.report()


@pytest.mark.parametrize("form", ["lacks", "has"])
def test_a_place_in_another_form_is_refused(form: str) -> None:
    """Such as one that knows no lengths."""
    ledger = PrivacyLedger(DELTA)
    begin(ledger)
    state = ledger.state()
    for place in state["passes"].values():
        place |= {"attempts": 1}
        if form == "lacks":
            del place["earlier"], place["attempts"]
    message = "place in its data has, or lacks, " + ("attempts" if form == "has" else "earlier")
    with pytest.raises(ValueError, match=message):
        PrivacyLedger(DELTA).restore(json.loads(json.dumps(state)))


def test_each_client_has_a_ledger_of_its_own() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger, clients=(3, 1))
    send(ledger, mask(6), client=3)
    send(ledger, mask(2), client=1)
    assert list(ledger.epsilons) == [1, 3]
    assert ledger.epsilons[1] < ledger.epsilons[3]
    assert ledger.report() == f"client 3: {ledger.ledgers[3].statement(DELTA)}"


def test_before_anything_was_sent_nothing_was_released() -> None:
    ledger = PrivacyLedger(DELTA)
    assert ledger.epsilons == {}
    assert ledger.report() == "nothing was released"
    begin(ledger)
    assert ledger.epsilons == {0: 0.0}


def test_neighbours_are_those_of_the_relation() -> None:
    ledger = PrivacyLedger(DELTA, relation="add-remove")
    begin(ledger)
    send(ledger, mask(4))
    assert spent(ledger) == pytest.approx(E_S / 4 * 0.5 + E_Y / 2 * 0.25)


class OwnShare(FullShare):
    name: ClassVar[str] = "own"


def test_shares_of_a_mixer_of_ones_own_are_known_by_name() -> None:
    ledger = PrivacyLedger(DELTA, shares=(OwnShare,))
    begin(ledger)
    send(ledger, noisy(OwnShare()))
    assert spent(ledger) == pytest.approx(FULL)
    stranger = PrivacyLedger(DELTA)
    begin(stranger)
    with pytest.raises(ValueError, match="unknown share 'own'"):
        send(stranger, noisy(OwnShare()))


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_an_impossible_delta_is_one_clear_error(delta: float) -> None:
    with pytest.raises(ValueError, match=f"delta is {delta}; it must lie strictly between 0 and 1"):
        PrivacyLedger(delta)


@pytest.mark.parametrize("lost", [False, True])
def test_a_restored_ledger_goes_on_where_it_was(lost: bool) -> None:
    through = PrivacyLedger(DELTA)
    ledger = PrivacyLedger(DELTA)
    for server_round, count in enumerate((4, 7, 2, 5, 6, 1), start=1):
        described = {"state-round": 0} if lost and server_round == 3 else {}
        for each in (through, ledger):
            begin(each, server_round, clients=(0, 5), described=described)
            for client in (0, 5):
                send(each, mask(count), client=client)
                send(each, mask(8 - count), client=client)
        state = json.loads(json.dumps(ledger.state(), allow_nan=False))
        ledger = PrivacyLedger(DELTA)
        ledger.restore(state)
    assert ledger.state() == through.state()
    assert ledger.epsilons == through.epsilons


def test_an_unbounded_ledger_is_restored_as_one() -> None:
    ledger = PrivacyLedger(DELTA)
    begin(ledger)
    send(ledger, FullShare())
    evaluate(ledger, "federated")
    other = PrivacyLedger(DELTA)
    other.restore(json.loads(json.dumps(ledger.state(), allow_nan=False)))
    assert other.report() == ledger.report()
    assert other.epsilons == {0: math.inf}


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_batch_in_parts_costs_what_it_costs_in_one_piece(parts: int) -> None:
    """Two batches; all calls of one may be told before any reply, or one by one."""
    whole, cut = PrivacyLedger(), PrivacyLedger()
    for ledger in (whole, cut):
        begin(ledger)
    plan = [mask(3).to_wire()]
    reply: dict[str, Any] = {"smashed": [], "labels": []}
    for number in range(2):
        send(whole, mask(3))
        calls = [
            Exchange(1, 0, "a part", "down", {"plan": plan, "part": part, "parts": parts}, 0)
            for part in range(parts)
        ]
        replies = [Exchange(1, 0, "a part", "up", reply, 8)] * parts
        events = [*calls, *replies]
        if number:
            events = [event for pair in zip(calls, replies, strict=True) for event in pair]
        for event in events:
            cut.on_exchange(event)
    assert 0 < cut.epsilons[0] == whole.epsilons[0] < float("inf")
    assert cut.state() == whole.state()
