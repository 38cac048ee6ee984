"""A client's own ledger: it charges before it sends, exactly, also in rounds that are repeated."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_splitmix.clients import ClientError, SplitClient
from flwr_splitmix.clients.client import MOST_EARLIER
from flwr_splitmix.clients.earlier_attempts import EarlierAttempts
from flwr_splitmix.clients.privacy_budget import PrivacyBudget
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.mixers import FullShare, PatchShare, Share, WeightedShare
from flwr_splitmix.testing.toy import Toy
from tests.clients.guarded import (
    DELTA,
    ORDER,
    TOY,
    N,
    allowing,
    ask,
    client_of,
    cost,
    epsilon,
    mask,
    noisy,
    spent,
    words,
)


@given(st.lists(st.integers(0, N), min_size=1, max_size=12))
@settings(max_examples=25, deadline=None)
def test_every_record_pays_for_the_batches_that_it_was_in(kept: list[int]) -> None:
    client = client_of()
    paid = np.zeros(12)
    for number, count in enumerate(kept):
        ask(client, number, mask(count))
        paid[client.batches.indices] += cost(count)
    assert spent(client) == pytest.approx(epsilon(float(paid.max())), rel=1e-9)


@pytest.mark.parametrize(
    ("shares", "rho"),
    [
        ([noisy(FullShare())], cost(N)),
        ([mask(2)], cost(2)),
        ([noisy(WeightedShare(lam=0.25))], cost(N * 0.25**2, 0.25)),
        ([mask(2), None, mask(3)], cost(2) + cost(3)),  # k-times: two releases of one batch
        ([mask(0)], 0.0),
        ([mask(3, clip_norm=2.0)], 4 * cost(3) - 3 * 2 * 0.5**2 / 200),
        ([mask(3, label_noise="before")], cost(3, 1.0)),
        ([mask(3, smashed_noise="all")], cost(3)),
    ],
    ids=["full", "cutmix", "mixup", "k-times", "nothing", "clip 2", "before", "all"],
)
def test_what_one_batch_costs(shares: list[Share | None], rho: float) -> None:
    client = client_of()
    ask(client, 0, *shares)
    assert spent(client) == pytest.approx(epsilon(rho), rel=1e-9)


def test_a_record_that_is_drawn_twice_into_a_batch_pays_twice() -> None:
    client = client_of(toy=replace(TOY, examples=2))  # less than a batch of 4
    paid = np.zeros(2)
    for number in range(3):
        ask(client, number, mask(3))
        np.add.at(paid, client.batches.indices, cost(3))
    assert paid.max() > 3 * cost(3)
    assert spent(client) == pytest.approx(epsilon(float(paid.max())), rel=1e-9)


def test_a_ledger_begins_where_a_server_asks_for_noise() -> None:
    client = client_of(privacy=None)
    assert client.guard is None
    ask(client, 0, mask(3))
    assert spent(client) == pytest.approx(epsilon(cost(3)), rel=1e-9)


def test_a_ledger_knows_what_was_sent_before_it_began() -> None:
    """What left without noise was forgotten, and a finite epsilon shown."""
    client = client_of(privacy=None)
    ask(client, 0, PatchShare(lam=0.5, patches=N, seed=1, start=0, stop=3))
    tensors, meta = client.state()
    again = client_of(privacy=None)
    again.restore(tensors, meta)
    budgeted = client_of()
    budgeted.restore(tensors, meta)
    assert spent(budgeted) == math.inf
    for one in (client, again):
        assert one.guard is None
        ask(one, 1, mask(3))
        assert spent(one) == math.inf
        assert "no epsilon: uploads without noise, by which an earlier strategy" in words(one)


def test_what_is_sent_without_noise_has_no_epsilon() -> None:
    client = client_of()
    ask(client, 0, FullShare())
    assert spent(client) == math.inf
    assert "no epsilon: no clipping of the smashed data; no noise on the smashed" in words(client)


@pytest.mark.parametrize(
    ("toy", "averaged", "named", "unnamed"),
    [
        (TOY, False, ["gradients sent to clients", "what a record did"], ["lower segments sent"]),
        (TOY, True, ["lower segments sent to be averaged", "gradients"], ["BatchNorm"]),
        (replace(TOY, batch_norm=True), False, ["no epsilon: BatchNorm, or another"], []),
        (replace(TOY, edge={}), False, ["gradients"], ["what a record did"]),
    ],
    ids=["alone", "averaged", "batch norm", "frozen"],
)
def test_what_no_number_covers_is_named(
    toy: Toy, averaged: bool, named: list[str], unnamed: list[str]
) -> None:
    client = client_of(replace(ORDER, averaged=averaged), toy)
    ask(client, 0, mask(3))
    client.release()
    said = words(client)
    assert all(part in said for part in named), said
    assert not any(part in said for part in unnamed), said
    assert math.isinf(spent(client)) == toy.batch_norm


def test_records_change_a_segment_of_which_only_a_part_is_frozen() -> None:
    client = client_of()
    segment, data = client.segment, client.batches.data
    next(segment.parameters()).requires_grad_(False)
    client = SplitClient(segment, data, privacy=PrivacyBudget(delta=DELTA), device="cpu")
    client.attach(ORDER, None)
    ask(client, 0, mask(3))
    assert "what a record did to the lower segment" in words(client)


def test_an_upload_that_returns_no_gradient_exposes_none() -> None:
    client = client_of()
    ask(client, 0, noisy(FullShare(learns=False)))
    assert "gradients" not in words(client)


def test_the_end_of_a_round_says_where_the_ledger_stands(caplog: pytest.LogCaptureFixture) -> None:
    client = client_of()
    ask(client, 0, mask(3))
    with caplog.at_level("DEBUG", logger="flwr.splitmix"):
        client.release()
    assert [r.getMessage() for r in caplog.records] == [f"client 0: {words(client)}"]


# Evaluation.

TESTS = {"kind": "federated", "start": 0, "stop": 3}


def test_private_tests_are_not_sent_where_there_is_a_budget() -> None:
    client = client_of(privacy=PrivacyBudget(delta=DELTA, max_epsilon=5.0))
    with pytest.raises(ClientError, match="own test data without noise, which no epsilon covers"):
        client.run("encode_test", TESTS)
    assert spent(client) == 0


def test_private_tests_end_every_bound_where_there_is_none() -> None:
    client = client_of()
    ask(client, 0, mask(3))
    assert math.isfinite(spent(client))
    client.run("encode_test", TESTS)
    assert spent(client) == math.inf
    assert "no epsilon: evaluation without noise on data not declared public" in words(client)


def test_a_ledger_knows_of_private_tests_that_were_sent_before_it_began() -> None:
    client = client_of(privacy=None)
    client.run("encode_test", TESTS)
    ask(client, 0, mask(3))
    assert spent(client) == math.inf
    assert "no epsilon: evaluation without noise on data not declared public" in words(client)


@pytest.mark.parametrize("limit", [None, 5.0])
def test_public_tests_cost_nothing(limit: float | None) -> None:
    budget = PrivacyBudget(delta=DELTA, max_epsilon=limit, public_evaluation=True)
    benchmark = TOY.test_data(0)
    client = client_of(privacy=budget, benchmark_data=benchmark)
    client.run("encode_test", TESTS)
    client.run("encode_test", {**TESTS, "kind": "benchmark"})
    assert spent(client) == 0
    # A benchmark is public, whatever the client says of its own tests.
    client = client_of(privacy=replace(budget, public_evaluation=False), benchmark_data=benchmark)
    client.run("encode_test", {**TESTS, "kind": "benchmark"})
    assert spent(client) == 0


# Rounds that are repeated, and states that are restored.


@pytest.mark.parametrize("attempt", [0, 1, 3])
def test_a_repeated_round_pays_for_its_earlier_attempts_with_the_worst_masks(attempt: int) -> None:
    order = replace(ORDER, attempt=attempt, earlier=(1,) * attempt)
    client = client_of(order)
    ask(client, 0, mask(2))
    assert spent(client) == pytest.approx(epsilon(cost(2) + attempt * cost(N)), rel=1e-9)
    # Of noise that repeats, a repeated round shows nothing new.
    repeating = client_of(order, repeatable_secrets=True)
    ask(repeating, 0, mask(2))
    assert spent(repeating) == pytest.approx(epsilon(cost(2)), rel=1e-9)


def test_a_longer_attempt_is_charged_in_whole_with_the_first_batch() -> None:
    """Of two passes of three batches; the round that repeats it has a single batch."""
    client = client_of(replace(ORDER, attempt=1, earlier=(6,)))
    ask(client, 0, mask(2))
    assert spent(client) == pytest.approx(epsilon(cost(2) + 2 * cost(N)), rel=1e-9)
    ask(client, 1, mask(2))
    assert spent(client) == pytest.approx(epsilon(cost(2) + 2 * cost(N)), rel=1e-9)


def test_attempts_that_do_not_fit_into_the_budget_have_at_most_spent_it() -> None:
    """The same budget has admitted them; what they were is not known, and nothing follows."""
    limit = allowing(2.5 * cost(N))
    budget = PrivacyBudget(delta=DELTA, max_epsilon=limit)
    client = client_of(replace(ORDER, attempt=3, earlier=(3, 3, 3)), privacy=budget)
    assert ask(client, 0, mask(2)) == {"budget-spent": True}
    assert spent(client) == 0
    assert client.epsilon == limit
    other = client_of(privacy=budget)
    other.restore(*client.state())
    assert other.epsilon == limit


def test_attempts_of_unknown_length_have_no_epsilon() -> None:
    order = replace(ORDER, attempt=2, earlier=(1,))
    client = client_of(order)
    ask(client, 0, mask(2))
    assert client.epsilon == math.inf
    limited = client_of(order, privacy=PrivacyBudget(delta=DELTA, max_epsilon=9.0))
    with pytest.raises(ClientError, match="no ledger can count"):
        ask(limited, 0, mask(2))


def test_more_batches_than_can_be_drawn_again_are_an_unknown_number() -> None:
    """Who accounts for no noise takes part; it was refused for good."""
    order = replace(ORDER, attempt=2, earlier=(MOST_EARLIER, 1))
    plain = client_of(order, privacy=None)
    assert "smashed" in ask(plain, 0, FullShare())
    client = client_of(order)
    ask(client, 0, mask(2))
    assert client.epsilon == math.inf
    assert order.unheld(1) == ([MOST_EARLIER], False)  # a file holds the other


def test_what_is_owed_for_many_rounds_has_a_bound() -> None:
    """The state grew with every round, and with it what had to be drawn again."""
    attempts = EarlierAttempts(12)
    for number in range(5):
        attempts.note(replace(ORDER, attempt=1, earlier=(MOST_EARLIER // 4,)), number, 0)
    attempts.note(replace(ORDER, attempt=3), 5, 0)
    attempts.note(replace(ORDER, attempt=3), 5, 0)
    assert attempts.state() == [[5, None]]


def test_earlier_attempts_are_drawn_again_once_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[int, ...]] = []

    def counted(batches: Batches, *place: int) -> Iterator[np.ndarray]:
        drawn.append(place[-2:])
        return records(batches, *place)

    records = Batches.records
    monkeypatch.setattr(Batches, "records", counted)
    client = client_of(replace(ORDER, attempt=1, earlier=(3,)))
    assert client.guard is not None
    refuse = patch.object(client.guard, "_charge", side_effect=ClientError("the disk is full"))
    for number in range(2):
        with refuse, pytest.raises(ClientError, match="the disk is full"):
            ask(client, number, mask(2))
    assert drawn == [(0, 3)]


def test_a_client_whose_budget_is_spent_draws_no_earlier_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = PrivacyBudget(delta=DELTA, max_epsilon=allowing(0.5 * cost(N)))
    client = client_of(privacy=budget)
    assert ask(client, 0, noisy(FullShare())) == {"budget-spent": True}
    monkeypatch.setattr(Batches, "records", Mock(side_effect=AssertionError))
    client.attach(replace(ORDER, server_round=2, attempt=1, earlier=(3,)), None)
    for number in range(2):
        assert ask(client, number, noisy(FullShare())) == {"budget-spent": True}


def test_what_a_full_disk_keeps_from_being_charged_stays_owed() -> None:
    """One batch of four was sent once and two of four twice: two charges."""
    client = client_of(replace(ORDER, attempt=2, earlier=(3, 1)))
    guard = client.guard
    assert guard is not None
    charge, full = guard._charge, [False, True]

    def charged(*events: Any, **options: Any) -> None:
        if full and full.pop(0):
            raise ClientError("the disk is full")
        charge(*events, **options)

    with patch.object(guard, "_charge", charged), pytest.raises(ClientError):
        ask(client, 0, mask(2))
    assert guard.state()["owed"] == [[0, 3], [0, 1]]
    ask(client, 1, mask(2))
    assert "owed" not in guard.state()
    assert spent(client) >= epsilon(2 * cost(N))


def test_a_plan_without_a_share_leaves_earlier_attempts_owed() -> None:
    client = client_of(replace(ORDER, attempt=1, earlier=(3,)))
    with pytest.raises(ClientError, match="no share for this client"):
        ask(client, 0, None)
    ask(client, 0, mask(2))
    assert spent(client) == pytest.approx(epsilon(cost(2) + cost(N)), rel=1e-9)


def test_the_log_says_what_is_owed_as_spent(caplog: pytest.LogCaptureFixture) -> None:
    budget = PrivacyBudget(delta=DELTA, max_epsilon=allowing(2.5 * cost(N)))
    client = client_of(replace(ORDER, attempt=3, earlier=(3, 3, 3)), privacy=budget)
    assert ask(client, 0, mask(2)) == {"budget-spent": True}
    with caplog.at_level("INFO", logger="flwr.splitmix"):
        client.release()
    assert f"client 0: epsilon {client.epsilon:.4g} at delta" in caplog.text


@pytest.mark.parametrize("earlier", [(-1,), (True,), (1.0,)])
def test_lengths_that_are_none_are_refused(earlier: tuple[int, ...]) -> None:
    with pytest.raises(ClientError, match="earlier attempts that are no numbers of batches"):
        replace(ORDER, attempt=1, earlier=earlier)


def test_a_restored_client_goes_on_with_its_ledger_and_stays_stopped() -> None:
    budget = PrivacyBudget(delta=DELTA, max_epsilon=allowing(2.5 * cost(3)))
    client = client_of(privacy=budget)
    for number in range(4):  # a pass of three, and one more
        assert "smashed" in ask(client, number, mask(3))
    before = spent(client)
    client.release()
    tensors, meta = client.state()
    meta = json.loads(json.dumps(meta, allow_nan=False))
    again = client_of(replace(ORDER, server_round=2), privacy=budget)
    again.restore(tensors, meta)
    assert spent(again) == before == pytest.approx(epsilon(2 * cost(3)))
    replies = [ask(again, number, mask(3)) for number in range(4)]
    assert ["budget-spent" in reply for reply in replies] == [False, False, True, True]
    tensors, meta = again.state()
    last = client_of(replace(ORDER, server_round=3), privacy=budget)
    last.restore(tensors, meta)
    assert ask(last, 0, mask(1)) == {"budget-spent": True}


def test_a_state_that_a_client_goes_on_with_forgets_nothing_that_it_has_sent_since() -> None:
    """What another run had spent in between was forgotten."""
    budget = PrivacyBudget(delta=DELTA, max_epsilon=allowing(6.5 * cost(3)))
    one = client_of(privacy=budget)
    kept = []
    for passed in range(2):
        for number in range(3):  # a pass
            ask(one, 3 * passed + number, mask(3))
        kept.append(json.loads(json.dumps(one.state()[1], allow_nan=False)))
    assert spent(one) == pytest.approx(epsilon(2 * cost(3)))
    for meta in kept:  # its own earlier states
        one.restore(one.state()[0], meta)
        assert spent(one) == pytest.approx(epsilon(2 * cost(3)))
    other = client_of(privacy=budget)  # of another process, which had sent one pass
    for number in range(3):
        ask(other, number, mask(3))
    for _ in range(2):  # the second time it has it already
        other.restore(one.state()[0], kept[1])
        assert spent(other) == pytest.approx(epsilon(3 * cost(3)))
    assert other.guard is not None
    other.guard.spent = True
    other.restore(one.state()[0], kept[0])
    assert spent(other) == pytest.approx(epsilon(4 * cost(3)))  # rather too much
    assert ask(other, 3, mask(1)) == {"budget-spent": True}


def test_the_state_of_another_ledger_is_refused() -> None:
    client = client_of()
    ask(client, 0, mask(3))
    tensors, meta = client.state()
    other = client_of(privacy=PrivacyBudget(relation="add-remove"))
    with pytest.raises(ValueError, match="'add-remove' cannot take a state of relation 'replace'"):
        other.restore(tensors, meta)
    with pytest.raises(ValueError, match="ledger of 8 values cannot take a state of 12"):
        client_of(toy=replace(TOY, examples=8)).restore(tensors, meta)
    # A client that was not told of any budget keeps the ledger that it had.
    plain = client_of(privacy=None)
    plain.restore(tensors, meta)
    assert spent(plain) == spent(client)
