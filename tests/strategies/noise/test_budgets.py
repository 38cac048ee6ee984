"""Clients with a budget stop at it, and the run ends or goes on without them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.clients import ClientError, PrivacyBudget
from flwr_splitmix.links import LinkError
from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import (
    DPSL,
    PSL,
    CutMixSL,
    DPCutMixSFL,
    DPCutMixSL,
    DPMixSFL,
)
from flwr_splitmix.testing.toy import sgd
from tests.strategies.noise.honest import (
    E_S,
    E_Y,
    FORMS,
    NOISE,
    TOY,
    epsilon,
    limits,
    noised,
    run,
    truth,
)


def test_each_client_stops_at_its_own_budget_and_never_above() -> None:
    budgets = limits(epsilon(1.5 * (E_S + E_Y)), epsilon(3.2 * (E_S + E_Y)), None, None)
    outcome = run(noised(DPSL), rounds=6, budgets=budgets)
    # A pass costs a full release: the first client makes one, the second three.
    assert [len(outcome.sent[client]) for client in range(4)] == [3, 9, 18, 18]
    for client, budget in budgets.items():
        if budget.max_epsilon is not None:
            assert truth(outcome.sent, client) == pytest.approx(outcome.by_client(client))
            assert outcome.by_client(client) <= budget.max_epsilon
    assert len(outcome.seen.rounds) == 6
    # Nobody failed: who has stopped is there and takes part in no step.
    assert all(not event.failures and event.clients_alive == 4 for event in outcome.seen.rounds)


@pytest.mark.parametrize("form", FORMS)
def test_no_client_ever_exceeds_its_budget(form: str) -> None:
    kind, form_options = FORMS[form]
    toy = replace(TOY, clients=5, examples=(12, 14, 9, 3, 12))
    budgets = limits(*(epsilon(share * (E_S + E_Y)) for share in (0.3, 1.1, 2.0, 2.4, 3.0)))
    outcome = run(noised(kind), toy, 8, budgets=budgets, **form_options)
    for client, budget in budgets.items():
        assert budget.max_epsilon is not None
        assert truth(outcome.sent, client) <= outcome.by_client(client) * (1 + 1e-9)
        assert outcome.by_client(client) <= budget.max_epsilon
    assert outcome.strategy.stop_reason.startswith("the privacy budget of ")
    assert len(outcome.seen.rounds) < 8


def test_a_client_stops_within_a_round_and_its_group_goes_on_without_it() -> None:
    budgets = limits(epsilon(1.2 * (E_S + E_Y)), None, None, None)
    outcome = run(noised(DPSL), budgets=budgets, steps_per_round=6)
    # The first pass fits; of the second no batch does.
    assert [sorted(step.uploads) for step in outcome.seen.steps] == [
        *[[0, 1, 2, 3]] * 3,
        *[[1, 2, 3]] * 3,
    ]
    requests = [e for e in outcome.seen.exchanges if e.client == 0 and e.direction == "down"]
    assert [e.payload["plan"] is not None for e in requests] == [True] * 4 + [False]
    replies = [e.payload for e in outcome.seen.exchanges if (e.client, e.direction) == (0, "up")]
    assert replies[3] == {"budget-spent": True}


@pytest.mark.parametrize("kind", [DPSL, DPCutMixSL, DPCutMixSFL, DPMixSFL])
def test_a_run_ends_early_and_cleanly_when_too_few_are_left(
    kind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = Run.create({}, name="dp", home=tmp_path)
    budgets = limits(*[epsilon(1.4 * (E_S + E_Y))] * 4)
    toy = replace(TOY, tests=5)
    with caplog.at_level("WARNING", logger="flwr.splitmix"):
        outcome = run(
            noised(kind), toy, 50, budgets=budgets, run=home, evaluation="benchmark",
            evaluate_every=100, checkpoint_every=100, benchmark=True,
        )  # fmt: skip
    last = len(outcome.seen.rounds)
    assert 1 < last < 50
    ends = [r.getMessage() for r in caplog.records if "the run ends" in r.getMessage()]
    assert len(ends) == 1
    assert ends[0].startswith(f"the run ends after round {last}: the privacy budget of clients")
    again = Run.open(home.id, home=tmp_path)
    assert again.status == "finished"
    assert again.summary is not None
    assert again.summary["rounds"] == again.summary["evaluated_round"] == last
    assert again.summary["top1"] is not None
    assert again.checkpoints.rounds() == [last]
    assert [row["round"] for row in again.rows] == list(range(1, last + 1))
    assert all(outcome.by_client(client) <= epsilon(1.4 * (E_S + E_Y)) for client in range(4))


def test_a_server_that_asks_for_too_little_noise_gets_nothing() -> None:
    budgets = limits(*[1.0] * 4)
    outcome = run(partial(DPSL, noise=replace(NOISE, sigma_s=0.1)), rounds=3, budgets=budgets)
    assert outcome.sent == {}
    assert not outcome.seen.steps
    assert [event.steps for event in outcome.seen.rounds] == [1]
    assert outcome.strategy.stop_reason == "the privacy budget of clients 0, 1, 2 and 3 is spent"
    assert {outcome.by_client(client) for client in range(4)} == {0.0}
    replies = [e.payload for e in outcome.seen.exchanges if e.direction == "up"]
    assert all(reply in ({"budget-spent": True}, {}) for reply in replies)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (PSL, "no clipping of the smashed data; no noise on the smashed data"),
        (CutMixSL, "no clipping of the smashed data; no noise"),
        (partial(DPSL, noise=replace(NOISE, clip="none")), "no clipping of the smashed data"),
        (partial(DPSL, noise=replace(NOISE, sigma_y=0.0)), "no noise on the labels"),
    ],
    ids=["PSL", "CutMixSL", "no clipping", "no label noise"],
)
def test_where_nothing_has_an_epsilon_a_client_with_a_budget_says_why(kind: Any, why: str) -> None:
    sentence = f"this client has max_epsilon = 1e.06, and what is asked of it has no epsilon: {why}"
    with pytest.raises(LinkError, match=sentence):
        run(kind, budgets=limits(*[1e6] * 4))


def test_one_client_with_a_budget_does_not_stop_the_others() -> None:
    outcome = run(noised(DPSL), TOY, 2, budgets=limits(1e-3))
    assert [sorted(step.uploads) for step in outcome.seen.steps] == [[1, 2, 3]] * 6
    assert outcome.strategy.stop_reason == ""


@pytest.mark.parametrize("clients", [1, 2])
def test_clients_with_a_budget_can_be_fitted_again_and_go_on_spending(clients: int) -> None:
    """The weights that another fit begins with are no average, which a budget refuses."""
    toy = replace(TOY, clients=clients)
    toy_clients = toy.make_clients(sgd(0.1), privacy=PrivacyBudget(max_epsilon=100.0))
    spent = []
    for _ in range(2):
        strategy = DPSL(toy.upper(), noise=NOISE, optimizer=sgd(0.1), device="cpu")
        strategy.fit(toy_clients, 1)
        spent.append(toy_clients[-1].epsilon)
    assert spent == pytest.approx([epsilon(E_S + E_Y), epsilon(2 * (E_S + E_Y))])
    other = {name: tensor + 1 for name, tensor in toy_clients[0].weights().items()}
    with pytest.raises(ClientError, match="other weights within the run"):
        toy_clients[0].attach(toy_clients[0].order, other)
