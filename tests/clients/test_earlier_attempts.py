"""What a client owes for rounds that it did not finish: charged in whole, and once."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest

from flwr_splitmix.clients import ClientError
from flwr_splitmix.clients.client import MAX_EARLIER
from flwr_splitmix.clients.guards.earlier_attempts import EarlierAttempts
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.mixers import FullShare
from flwr_splitmix.words import epsilon_text
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
)


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
    with pytest.raises(ClientError, match="length, mixer or noise is not known"):
        ask(limited, 0, mask(2))


def test_more_batches_than_can_be_drawn_again_are_an_unknown_number() -> None:
    """A client that accounts for no noise takes part all the same."""
    order = replace(ORDER, attempt=2, earlier=(MAX_EARLIER + 1, 1))
    plain = client_of(order, privacy=None)
    assert "smashed" in ask(plain, 0, FullShare())
    client = client_of(order)
    ask(client, 0, mask(2))
    assert client.epsilon == math.inf
    assert order.unheld(1) == ([MAX_EARLIER + 1], False)  # a file holds the other


@pytest.mark.parametrize("examples", [3, 13])
def test_batches_of_overlapping_attempts_are_drawn_once_and_count_as_often(examples: int) -> None:
    """With few examples, batches are drawn with replacement."""
    batches = Batches(TOY.data(0), 4)
    batches.examples, batches.per_epoch = examples, examples // 4
    draw, attempts = random.Random(examples), EarlierAttempts(examples)
    spans: list[tuple[int, int]] = []
    drawn: list[int] = []
    for _ in range(20):
        place, length = draw.randrange(30), draw.randrange(40)
        attempts.note(replace(ORDER, attempt=1, earlier=(length,)), place, 0)
        spans.append((place, place + length))

    def records(first: int, last: int) -> Iterator[np.ndarray]:
        drawn.extend(range(first, last))
        return batches.records(9, 0, first, last)

    expected = np.zeros(examples, dtype=np.int64)
    for span in spans:
        for each in batches.records(9, 0, *span):
            expected += np.bincount(each, minlength=examples)
    assert attempts._counted(records).tolist() == expected.tolist()
    assert sorted(drawn) == sorted({place for span in spans for place in range(*span)})


def test_what_is_owed_for_many_rounds_has_a_bound() -> None:
    """Otherwise the state would grow with every round, and what has to be drawn again with it."""
    attempts = EarlierAttempts(12)
    for number in range(4):
        place = number * MAX_EARLIER // 4
        attempts.note(replace(ORDER, attempt=1, earlier=(MAX_EARLIER // 4,)), place, 0)
    assert len(attempts.state()) == 4
    attempts.note(replace(ORDER, attempt=1, earlier=(1,)), MAX_EARLIER, 0)
    attempts.note(replace(ORDER, attempt=3), 5, 0)
    assert attempts.state() == [[5, None]]
    many = replace(ORDER, attempt=MAX_EARLIER, earlier=(1,) * MAX_EARLIER)
    attempts.note(many, 6, 0)
    assert attempts.state() == [[6, None]]


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
    """One batch of four is sent once and two of four twice: two charges."""
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
    assert client.epsilon is not None
    assert f"client 0: epsilon {epsilon_text(client.epsilon)} at delta" in caplog.text


@pytest.mark.parametrize("earlier", [(-1,), (True,), (1.0,)])
def test_lengths_that_are_none_are_refused(earlier: tuple[int, ...]) -> None:
    with pytest.raises(ClientError, match="earlier attempts that are not numbers of batches"):
        replace(ORDER, attempt=1, earlier=earlier)
