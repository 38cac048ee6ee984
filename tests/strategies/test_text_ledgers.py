"""The clients' ledgers of texts cover what was sent in rounds that did not end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_splitmix.events import Exchange
from flwr_splitmix.hiding import DPForward
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy.analytic import gaussian_epsilon
from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import DPForwardSL
from flwr_splitmix.testing.resume import InterruptionError, StopIn
from flwr_splitmix.testing.toy import step_of
from flwr_splitmix.testing.toy_texts import TextToy, text_toy

pytestmark = pytest.mark.fresh_secrets


class Sent:
    """What has truly left client 0."""

    def __init__(self, examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cost = np.zeros(examples)
        charge = DPForward.charge

        def counted(hiding: DPForward, kind: str, records: Any) -> None:
            if hiding.side.client == 0:
                np.add.at(self.cost, np.asarray(records), hiding.covering.shift**2)
            charge(hiding, kind, records)

        monkeypatch.setattr(DPForward, "charge", counted)

    @property
    def epsilon(self) -> float:
        return gaussian_epsilon(1e-5, math.sqrt(self.cost.max()))


def strategy_of(toy: TextToy, run: Run, watch: Observer | None = None) -> DPForwardSL:
    return DPForwardSL(
        toy.server(), device="cpu", steps_per_round=3, seed=1, run=run,
        observers=[] if watch is None else [watch],
    )  # fmt: skip


def test_a_resumed_run_charges_the_round_in_which_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = text_toy("DPForwardSL", clients=1, tests=6)
    releases = Sent(toy.examples, monkeypatch)
    run = Run.create({}, name="dp", home=tmp_path)
    for watch in (StopIn(3, 1), None):
        strategy = strategy_of(toy, Run.open(run.id, home=tmp_path), watch)
        clients = toy.clients_for(strategy, repeatable_secrets=False)
        if watch is None:
            strategy.fit(clients, 3)
        else:
            with pytest.raises(InterruptionError):
                strategy.fit(clients, 3)
    assert clients[0].epsilon is not None
    assert releases.epsilon <= clients[0].epsilon * (1 + 1e-9)


def test_a_run_that_goes_on_forgets_nothing_of_the_run_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = text_toy("DPForwardSL", clients=1, tests=6)
    releases = Sent(toy.examples, monkeypatch)
    run, between = (Run.create({}, name="dp", home=tmp_path) for _ in range(2))
    clients = toy.clients_for(repeatable_secrets=False)
    for home, rounds in ((run, 1), (between, 2), (run, 2)):
        strategy_of(toy, Run.open(home.id, home=tmp_path)).fit(clients, rounds)
    assert clients[0].epsilon == pytest.approx(releases.epsilon)


class HostDies(Observer):
    """Replaces client 0 in the middle of round 2 by one that knows nothing, as a new host has."""

    def __init__(self, toy: TextToy) -> None:
        self.toy = toy
        self.strategy: Any = None
        self.done = False

    def on_exchange(self, event: Exchange) -> None:
        if self.done or event.client or (event.server_round, step_of(event)) != (2, 2):
            return
        self.done = True
        link = self.strategy.run_state.link
        del link.host.clients[0]
        link.clients[0] = self.toy.clients_for(self.strategy, repeatable_secrets=False)[0]


def test_a_client_whose_host_died_charges_what_it_had_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = text_toy("DPForwardSL", clients=2, tests=6)
    releases = Sent(toy.examples, monkeypatch)
    death = HostDies(toy)
    death.strategy = strategy_of(toy, Run.create({}, name="dp", home=tmp_path), death)
    death.strategy.fit(toy.clients_for(death.strategy, repeatable_secrets=False), 3)
    assert death.done
    assert releases.epsilon <= death.strategy.run_state.link.clients[0].epsilon * (1 + 1e-9)
