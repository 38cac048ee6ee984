"""The ledgers of a mixer's runs: one for each run, as many as fit, one round at a time."""

from __future__ import annotations

import math

import pytest
import torch

from flwr_splitmix.events import Exchange
from flwr_splitmix.links.mixer.service import RefusedError
from flwr_splitmix.mixer_process.ledgers import RoundLedger, RunLedgers
from flwr_splitmix.mixers import Group, Member, Mixed, Plan, SmashedShape, Source, WeightedShare
from tests.observers.ledger_exchanges import DELTA, D, L, N, noisy, says

CLIENTS = (0, 1)
SHARE = noisy(WeightedShare(lam=0.5), clamp_labels=False)


def begun(ledgers: RunLedgers, run: str, server_round: int = 1, attempt: int = 0) -> RoundLedger:
    """Begin a round of two clients."""
    attempts = dict.fromkeys(CLIENTS, [1] * attempt)
    ledger = RoundLedger(ledgers.of(run, "replace"), server_round, DELTA, attempts)
    ledger.begin(dict.fromkeys(CLIENTS, says(server_round)))
    return ledger


MEMBERS = tuple(Member(client, SHARE) for client in CLIENTS)
PLAN = Plan(SmashedShape(4, N, D, classes=L), ((Group(MEMBERS),),))


def ask(ledger: RoundLedger) -> None:
    """Let both clients be asked for a batch."""
    for client in CLIENTS:
        ledger.observe(Exchange(1, client, "step", "down", {"plan": PLAN.for_node(client)}, 0))


def step(ledger: RoundLedger) -> None:
    """Let both clients be asked, answer, and be mixed."""
    ask(ledger)
    for client in CLIENTS:
        # More than was asked for: the server never sees it.
        reply = {"smashed": [], "labels": [], "diary": torch.ones(3)}
        ledger.observe(Exchange(1, client, "step", "up", reply, 12))
    nothing = torch.zeros(())
    ledger.charge(PLAN, Mixed(nothing, nothing, (Source(0, MEMBERS, 1.0),)))


def test_epsilon_is_reported_at_the_delta_that_was_asked_for() -> None:
    ledgers = RunLedgers()
    epsilons = []
    for run, delta in (("one", 1e-3), ("another", 1e-9)):
        ledger = RoundLedger(ledgers.of(run, "replace"), 1, delta, {})
        ledger.begin(dict.fromkeys(CLIENTS, says()))
        step(ledger)
        epsilons.append(ledger.finish(()).epsilon)
    assert 0 < epsilons[0] < epsilons[1]


def test_rounds_of_a_run_add_up_and_another_run_has_its_own() -> None:
    ledgers = RunLedgers()
    spent = []
    for server_round in (1, 2, 3):
        ledger = begun(ledgers, "one", server_round)
        for _ in range(3):
            step(ledger)
        account = ledger.finish(())
        assert account.rounds == frozenset(range(1, server_round + 1))
        spent.append(account.epsilon)
    assert 0 < spent[0] < spent[1] < spent[2] < math.inf
    other = begun(ledgers, "other")
    step(other)
    assert other.finish(()).epsilon == spent[0]  # of each pass the worst batch is charged
    assert other.finish(()).rounds == {1}


def test_a_round_that_is_finished_is_not_charged_again_with_the_next() -> None:
    def spent(*, finished: bool) -> float:
        ledgers = RunLedgers()
        first = begun(ledgers, "one")
        step(first)
        if finished:
            first.finish(())
        second = begun(ledgers, "one", 2)
        step(second)
        return second.finish(()).epsilon

    assert spent(finished=True) < spent(finished=False)


def test_what_is_in_no_mixture_costs_nothing() -> None:
    ledger = begun(RunLedgers(), "one")
    ledger.observe(Exchange(1, 0, "step", "down", {"plan": [SHARE.to_wire()]}, 0))
    ledger.observe(Exchange(1, 0, "step", "up", {"smashed": [], "labels": []}, 12))
    account = ledger.finish(())
    assert (account.epsilon, account.unbounded_because, account.outside) == (0.0, (), ())


def test_the_run_that_was_used_longest_ago_goes_first_and_begins_anew() -> None:
    ledgers = RunLedgers(most=2)
    for run in ("one", "two"):
        step(begun(ledgers, run))
    begun(ledgers, "one", 2)  # so that "two" is the one that goes
    begun(ledgers, "three")
    assert begun(ledgers, "one", 3).finish(()).rounds == {1, 2, 3}
    again = begun(ledgers, "two", 2).finish(())
    assert again.rounds == {2}
    assert again.epsilon == 0.0


def test_a_run_keeps_its_neighbours() -> None:
    ledgers = RunLedgers()
    begun(ledgers, "one")
    with pytest.raises(RefusedError, match="kept for relation 'replace', which cannot become"):
        ledgers.of("one", "add-remove")


def test_of_two_streams_of_one_run_the_older_gets_nothing_more() -> None:
    """Charges of both would be taken for batches of one pass, of which the worst counts."""
    ledgers = RunLedgers()
    older = begun(ledgers, "one")
    step(older)
    newer = begun(ledgers, "one", 2)
    for use in (step, lambda ledger: ledger.finish(())):
        with pytest.raises(RefusedError, match="has begun another round at this mixer since"):
            use(older)
    step(newer)
    assert newer.finish(()).rounds == {1, 2}


@pytest.mark.parametrize(("attempt", "unfinished"), [(1, False), (0, True), (1, True)])
def test_a_round_that_was_begun_before_is_paid_for(attempt: int, unfinished: bool) -> None:
    """Once, whether the ServerApp says so or the ledger itself has seen it, or both."""

    def spent(attempt: int, unfinished: bool) -> float:
        ledgers = RunLedgers()
        if unfinished:
            ask(begun(ledgers, "one"))
        ledger = begun(ledgers, "one", attempt=attempt)
        step(ledger)
        return ledger.finish(()).epsilon

    once = spent(1, False)
    assert spent(0, False) < once < math.inf
    if not unfinished:
        assert spent(attempt, unfinished) == once
    else:  # the batches of a pass that begins anew may hold a record of the old one's end
        assert once <= spent(attempt, unfinished) == spent(0, True)
