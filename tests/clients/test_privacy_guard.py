"""A client's own ledger: it charges before it sends, exactly."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_splitmix.clients import ClientError, SplitClient
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.mixers import FullShare, PatchShare, Share, WeightedShare
from flwr_splitmix.privacy.policy import NodePolicy
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
def test_every_record_pays_for_the_batches_that_it_was_in(counts: list[int]) -> None:
    client = client_of()
    paid = np.zeros(12)
    for number, count in enumerate(counts):
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
    """A finite epsilon would be false if anything left without noise."""
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
    statement = words(client)
    assert all(part in statement for part in named), statement
    assert not any(part in statement for part in unnamed), statement
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


# States that are restored.


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
    """What another run spends in between counts as well."""
    budget = PrivacyBudget(delta=DELTA, max_epsilon=allowing(6.5 * cost(3)))
    one = client_of(privacy=budget)
    metas = []
    for passed in range(2):
        for number in range(3):  # a pass
            ask(one, 3 * passed + number, mask(3))
        metas.append(json.loads(json.dumps(one.state()[1], allow_nan=False)))
    assert spent(one) == pytest.approx(epsilon(2 * cost(3)))
    for meta in metas:  # its own earlier states
        one.restore(one.state()[0], meta)
        assert spent(one) == pytest.approx(epsilon(2 * cost(3)))
    other = client_of(privacy=budget)  # of another process, which has sent one pass
    for number in range(3):
        ask(other, number, mask(3))
    for _ in range(2):  # the second time it has it already
        other.restore(one.state()[0], metas[1])
        assert spent(other) == pytest.approx(epsilon(3 * cost(3)))
    assert other.guard is not None
    other.guard.spent = True
    other.restore(one.state()[0], metas[0])
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
    # A client that is not told of any budget keeps the ledger that it has.
    plain = client_of(privacy=None)
    plain.restore(tensors, meta)
    assert spent(plain) == spent(client)


@pytest.mark.parametrize("privacy", [None, PrivacyBudget()])
def test_a_client_tells_the_next_server_why_it_has_no_epsilon_and_a_node_does_not(
    privacy: PrivacyBudget | None, tmp_path: Path
) -> None:
    """A node's runs may be of several servers, which learn nothing of each other's."""
    reasons = []
    for on_node in (False, True):
        (client,) = TOY.make_clients(privacy=privacy, repeatable_secrets=False)
        if on_node:
            client.govern(NodePolicy(), tmp_path, 0, "run")
        assert "unbounded" not in client.attach(ORDER, None)
        ask(client, 0, FullShare())
        reasons.append(client.attach(replace(ORDER, server_round=2), None).get("unbounded"))
    assert reasons == [["plain"] if privacy is None else ["clip", "sigma_s", "sigma_y"], None]
