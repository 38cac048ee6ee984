"""A client's own ledger: it charges before it sends, exactly, and never above what is allowed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_splitmix.clients import ClientError, Order, SplitClient
from flwr_splitmix.clients.privacy_budget import PrivacyBudget
from flwr_splitmix.mixers import FullShare, NoisyShare, PatchShare, Share, WeightedShare
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.accountant import epsilon_from_rdp, rdp_curve
from flwr_splitmix.testing.toy import Toy, sgd

TOY = Toy(clients=1, batch_norm=False, examples=12, tests=6)
N, D, L = TOY.patches, TOY.width, TOY.classes
DELTA = 1e-5
NOISE = GaussianNoise(sigma_s=20.0, sigma_y=10.0)
ORDER = Order(client=0, seed=9, server_round=1, num_rounds=3)


def noisy(inner: Share, **changes: Any) -> NoisyShare:
    return NoisyShare.around(inner, replace(NOISE, **changes), L)


def mask(kept: int, **changes: Any) -> NoisyShare:
    return noisy(PatchShare(lam=kept / N, patches=N, seed=1, start=0, stop=kept), **changes)


def cost(kept: float, lam: float | None = None) -> float:
    """Return the slope of a release of so many patches of norm 1 and of a label times `lam`."""
    lam = kept / N if lam is None else lam
    return 4 * kept / (2 * 20.0**2) + 2 * lam**2 / (2 * 10.0**2)


def epsilon(rho: float) -> float:
    return float(epsilon_from_rdp(rdp_curve(rho), DELTA)[0]) if rho else 0.0


def allowing(rho: float) -> float:
    """Return a budget for a slope, whichever way its last digit is rounded."""
    return epsilon(rho) * (1 + 1e-12)


def client_of(order: Order = ORDER, toy: Toy = TOY, **options: Any) -> SplitClient:
    options = {"privacy": PrivacyBudget(delta=DELTA), "repeatable_secrets": False, **options}
    (client,) = toy.make_clients(sgd(0.1), **options)
    client.attach(order, None)
    return client


def ask(client: SplitClient, number: int, *shares: Share | None, **more: Any) -> dict[str, Any]:
    plan = [None if share is None else share.to_wire() for share in shares]
    arguments = {"number": number, "progress": 0.0, "gradient": None, "plan": plan, **more}
    return client.run("step", arguments)


def spent(client: SplitClient) -> float:
    assert client.guard is not None
    return client.guard.ledger.epsilon(DELTA)


def words(client: SplitClient) -> str:
    assert client.guard is not None
    return str(client.guard.ledger.statement(DELTA))


# The ledger.


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
    ask(client, 0, PatchShare(lam=0.5, patches=N, seed=1, start=0, stop=3))
    assert client.guard is None
    ask(client, 1, mask(3))
    assert spent(client) == pytest.approx(epsilon(cost(3)), rel=1e-9)


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
        (replace(TOY, batch_norm=True), False, ["no epsilon: BatchNorm in the lower"], []),
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


# The budget.


@given(st.lists(st.integers(0, N), min_size=30, max_size=30), st.floats(0.5, 3.0))
@settings(max_examples=15, deadline=None)
def test_a_client_stops_before_the_release_that_would_exceed_its_budget(
    kept: list[int], limit: float
) -> None:
    client = client_of(privacy=PrivacyBudget(delta=DELTA, max_epsilon=limit))
    paid = np.zeros(12)
    for number, count in enumerate(kept):
        reply = ask(client, number, mask(count))
        here = client.batches.indices
        if "budget-spent" in reply:
            # It would have been too much, and nothing of it left the client.
            assert reply == {"budget-spent": True}
            assert epsilon(float((paid[here] + cost(count)).max())) > limit
            break
        paid[here] += cost(count)
    assert spent(client) == pytest.approx(epsilon(float(paid.max())), rel=1e-9)
    assert spent(client) <= limit


def test_who_has_stopped_sends_nothing_more_however_little_it_would_cost() -> None:
    client = client_of(privacy=PrivacyBudget(delta=DELTA, max_epsilon=allowing(cost(3))))
    assert client.attach(ORDER, None).get("budget-spent") is None
    assert "smashed" in ask(client, 0, mask(3))
    before = spent(client)
    assert ask(client, 1, mask(5)) == {"budget-spent": True}
    assert ask(client, 2, mask(1)) == {"budget-spent": True}
    assert ask(client, 3, mask(0)) == {"budget-spent": True}
    assert spent(client) == before
    assert client.attach(replace(ORDER, server_round=2), None)["budget-spent"] is True


def test_who_stops_still_learns_from_what_it_sent_before() -> None:
    client = client_of(privacy=PrivacyBudget(delta=DELTA, max_epsilon=allowing(cost(3))))
    (up,) = ask(client, 0, mask(3))["smashed"]
    assert "budget-spent" in ask(client, 1, mask(5), gradient=[torch.ones_like(up)])
    assert client.steps == 1
    assert ask(client, 2, mask(3)) == {"budget-spent": True}


def test_noise_that_is_weaker_than_the_budget_needs_is_refused_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limit = 2.0
    weak = replace(NOISE, sigma_s=0.5)
    assert epsilon(4 * 3 / (2 * 0.5**2)) > limit > epsilon(cost(3))
    client = client_of(privacy=PrivacyBudget(delta=DELTA, max_epsilon=limit))
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        for number in range(2):
            asked = replace(mask(3), noise=weak)
            assert ask(client, number, asked) == {"budget-spent": True}
    assert [r.getMessage() for r in caplog.records] == [
        "client 0 sends nothing more: another upload would bring its epsilon above max_epsilon = 2"
    ]
    assert spent(client) == 0


@pytest.mark.parametrize(
    ("shares", "toy", "why"),
    [
        ([mask(3, clip="none")], TOY, "no clipping of the smashed data"),
        ([mask(3, sigma_s=0.0)], TOY, r"no noise on the smashed data \(sigma_s = 0\)"),
        ([mask(3, sigma_y=0.0)], TOY, r"no noise on the labels \(sigma_y = 0\)"),
        ([FullShare()], TOY, "no clipping of the smashed data; no noise on the smashed data"),
        ([mask(1), FullShare()], TOY, "no clipping of the smashed data; no noise on the"),
        ([mask(3)], replace(TOY, batch_norm=True), "BatchNorm in the lower segment"),
    ],
    ids=["clip", "sigma_s", "sigma_y", "no noise", "one pass without", "batch norm"],
)
def test_a_budget_and_uploads_without_any_epsilon_do_not_go_together(
    shares: list[Share], toy: Toy, why: str
) -> None:
    client = client_of(toy=toy, privacy=PrivacyBudget(delta=DELTA, max_epsilon=1e9))
    sentence = (
        f"^this client has max_epsilon = 1e.09, and what is asked of it has no epsilon: {why}"
    )
    with pytest.raises(ClientError, match=sentence) as caught:
        ask(client, 0, *shares)
    assert "\n" not in str(caught.value)
    assert spent(client) == 0
    # Whoever asks for what is allowed then gets it.
    if not toy.batch_norm:
        assert "smashed" in ask(client, 1, mask(3))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"delta": 0.0}, "delta is 0.0; it must lie strictly between 0 and 1"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"delta": -0.1}, "delta is -0.1"),
        ({"delta": math.nan}, "delta is nan"),
        ({"max_epsilon": 0.0}, "max_epsilon is 0.0; a budget must be above 0"),
        ({"max_epsilon": -1.0}, "max_epsilon is -1.0; a budget must be above 0"),
        ({"max_epsilon": math.nan}, "max_epsilon is nan"),
    ],
)
def test_an_impossible_budget_is_one_sentence(values: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        PrivacyBudget(**values)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_neighbours_that_are_added_or_removed_cost_less() -> None:
    client = client_of(privacy=PrivacyBudget(delta=DELTA, relation="add-remove"))
    ask(client, 0, mask(3))
    assert spent(client) == pytest.approx(epsilon(3 / (2 * 20**2) + 0.25 / (2 * 10**2)))
    with pytest.raises(ValueError, match="relation is 'swap'"):
        client_of(privacy=PrivacyBudget(relation="swap"))  # type: ignore[arg-type]


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
    order = replace(ORDER, attempt=attempt)
    client = client_of(order)
    ask(client, 0, mask(2))
    assert spent(client) == pytest.approx(epsilon(cost(2) + attempt * cost(N)), rel=1e-9)
    # Of noise that repeats, a repeated round shows nothing new.
    repeating = client_of(order, repeatable_secrets=True)
    ask(repeating, 0, mask(2))
    assert spent(repeating) == pytest.approx(epsilon(cost(2)), rel=1e-9)


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


# Secrets.


def test_a_step_that_is_repeated_has_fresh_noise_and_pays_again() -> None:
    client = client_of()
    first, second = (ask(client, 0, mask(3)) for _ in range(2))
    assert client.batches.drawn == 1  # the same batch
    assert not first["smashed"][0].eq(second["smashed"][0]).any()
    assert not first["labels"][0].equal(second["labels"][0])
    assert spent(client) == pytest.approx(epsilon(2 * cost(3)), rel=1e-9)


def test_two_clients_with_one_seed_draw_other_noise() -> None:
    first, second = (ask(client_of(), 0, mask(3)) for _ in range(2))
    assert not first["smashed"][0].eq(second["smashed"][0]).any()


def test_noise_repeats_only_for_who_was_made_so() -> None:
    made = [client_of(repeatable_secrets=True) for _ in range(2)]
    first, second = (ask(client, 0, mask(3)) for client in made)
    assert first["smashed"][0].equal(second["smashed"][0])
    assert first["labels"][0].equal(second["labels"][0])
    assert made[0].attach(ORDER, None)["repeatable-secrets"] is True
    assert "repeatable-secrets" not in client_of().attach(ORDER, None)


@pytest.mark.parametrize("key", ["repeatable_secrets", "seeded_secrets", "seed", "generator"])
def test_no_call_of_a_server_makes_a_clients_noise_repeatable(key: str) -> None:
    client = client_of()
    told = mask(3).to_wire()
    noise = told["noise"]
    assert isinstance(noise, dict)
    with pytest.raises(TypeError, match=key):
        client.run("step", {"number": 0, "progress": 0.0, "gradient": None, "plan": [], key: True})
    for plan in ([{**told, key: 1}], [{**told, "noise": {**noise, key: 1}}]):
        with pytest.raises(ValueError, match=r"nothing else|noise has no"):
            client.run("step", {"number": 0, "progress": 0.0, "gradient": None, "plan": plan})
    first, second = (ask(client, 0, mask(3)) for _ in range(2))
    assert not first["smashed"][0].eq(second["smashed"][0]).any()


def test_noise_of_one_client_does_not_become_repeatable_beside_one_of_a_test() -> None:
    """Clients of one process: what is made repeatable ends with the call."""
    client_of(repeatable_secrets=True).run(
        "step", {"number": 0, "progress": 0.0, "gradient": None, "plan": [mask(3).to_wire()]}
    )
    first, second = (ask(client_of(), 0, mask(3)) for _ in range(2))
    assert not first["smashed"][0].eq(second["smashed"][0]).any()


def test_a_guard_charges_before_an_upload_is_made() -> None:
    """A share that then turns out to be for other tokens has cost, and sent nothing."""
    client = client_of()
    other = noisy(PatchShare(lam=0.5, patches=N + 2, seed=1, start=0, stop=4))
    with pytest.raises(ValueError, match=r"the share is for 0 \+ 8 tokens"):
        ask(client, 0, other)
    assert spent(client) > 0
