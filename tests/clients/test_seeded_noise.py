"""Noise from the run's seed, which the server knows, is none in a node's ledger."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_splitmix.clients import ClientError, PrivacyBudget
from flwr_splitmix.hiding import DPSGD, DPForward
from flwr_splitmix.mixers import Share
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.strategies import DPCutMixSL, DPForwardSL
from flwr_splitmix.testing.toy_texts import TextToy, text_toy
from tests.clients.guarded import NOISE, ORDER, TOY, ask, mask, words

SEEDED = "noise drawn from the run's seed (repeatable_secrets), which the server knows"


def on_node(folder: Path | None, run: str, *, seeded: bool, **options: Any) -> Any:
    """Make a client of a node's run, and attach it."""
    (client,) = TOY.make_clients(repeatable_secrets=seeded, **options)
    client.govern(NodePolicy(), folder, 0, run)
    client.attach(ORDER, None)
    return client


@pytest.mark.parametrize("in_folder", [True, False], ids=["file", "no folder"])
def test_a_nodes_ledger_counts_noise_from_the_runs_seed_as_none(
    in_folder: bool, tmp_path: Path
) -> None:
    """From the seed the server recovers such smashed data to 3e-6, so no epsilon holds."""
    client = on_node(tmp_path if in_folder else None, "run", seeded=True)
    assert ask(client, 0, mask(3))["smashed"]
    assert client.epsilon == math.inf
    assert SEEDED in words(client)


def test_a_later_run_of_the_node_does_not_go_on_as_if_that_noise_had_been_secret(
    tmp_path: Path,
) -> None:
    """Otherwise a client with max_epsilon = 8 would go on from an epsilon that does not hold."""
    ask(on_node(tmp_path, "one", seeded=True), 0, mask(3))
    later = on_node(tmp_path, "two", seeded=False, privacy=PrivacyBudget(max_epsilon=8.0))
    assert ask(later, 0, mask(3)) == {"budget-spent": True}
    assert later.epsilon == math.inf


def test_what_leaves_without_noise_keeps_its_own_reason(tmp_path: Path) -> None:
    share: Share = mask(3).inner
    client = on_node(tmp_path, "run", seeded=True, privacy=PrivacyBudget())
    ask(client, 0, share)
    assert SEEDED not in words(client)


@pytest.mark.parametrize(
    "budget", [PrivacyBudget(max_epsilon=8.0), PrivacyBudget(allow_plain=False)], ids=str
)
def test_a_node_refuses_a_budget_of_the_app_over_such_noise(
    budget: PrivacyBudget, tmp_path: Path
) -> None:
    """As it refuses a budget of its own."""
    with pytest.raises(ClientError, match="the server knows: make it without repeatable_secrets"):
        on_node(tmp_path, "run", seeded=True, privacy=budget)


@pytest.mark.parametrize("hiding", [DPForward, DPSGD])
def test_on_a_node_a_hidings_ledger_counts_such_noise_as_none(hiding: Any, tmp_path: Path) -> None:
    toy = TextToy(hiding=hiding, clients=1)
    statements = {}
    for seeded in (True, False):
        (client,) = toy.clients_for(repeatable_secrets=seeded)
        client.govern(NodePolicy(), tmp_path, 0, "run")
        described = client.attach(ORDER, None)
        assert described.get("repeatable-secrets", False) is seeded
        client.segments.train()
        client.hiding.charge("train", np.arange(4))
        client.hiding.obfuscate(client._first_batch(4))
        client.hiding.before_update()
        client_hiding: Any = client.hiding
        statements[seeded] = str(client_hiding.statement())
    assert SEEDED in statements[True]
    assert SEEDED not in statements[False]


def noisy_run(shape: str, *, seeded: bool) -> tuple[Any, Any]:
    """Return a strategy with noise, of the L or the U shape, and two clients for it."""
    if shape == "L":
        toy = replace(TOY, clients=2)
        strategy = DPCutMixSL(toy.upper(), noise=NOISE, device="cpu", steps_per_round=1)
        return strategy, toy.make_clients(repeatable_secrets=seeded)
    texts = text_toy("DPForwardSL", clients=2)
    of_texts = DPForwardSL(texts.server(), device="cpu", steps_per_round=1)
    return of_texts, texts.clients_for(repeatable_secrets=seeded)


@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize("shape", ["L", "U"])
def test_a_run_with_such_noise_warns_once_of_what_its_epsilon_is(
    shape: str, seeded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    strategy, clients = noisy_run(shape, seeded=seeded)
    with caplog.at_level(logging.WARNING, logger="flwr.splitmix"):
        strategy.fit(clients, 2)
    assert caplog.text.count("is drawn from the run's seed") == seeded
    row = strategy.rows[-1]
    assert math.isfinite(row["epsilon" if shape == "L" else "train_epsilon"])


@pytest.mark.parametrize("shape", ["L", "U"])
def test_on_nodes_a_run_says_what_its_epsilon_is(
    shape: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in the U shape, where the number is the clients' own."""
    strategy, clients = noisy_run(shape, seeded=True)
    for index, client in enumerate(clients):
        client.govern(NodePolicy(), tmp_path / str(index), index, "run")
    with caplog.at_level(logging.WARNING, logger="flwr.splitmix"):
        strategy.fit(clients, 1)
    if shape == "L":
        assert "epsilon is what it would cost if the seed were a secret" in caplog.text
        assert math.isfinite(strategy.rows[-1]["epsilon"])
        assert {client.epsilon for client in clients} == {math.inf}
    else:
        assert "it protects nothing, and there is no epsilon" in caplog.text
        assert strategy.rows[-1]["train_epsilon"] == math.inf
