"""Runs with noise whose clients write down what truly left them, and what that cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flwr_splitmix.clients import SplitClient, exchange
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.mixers import SHARES, NoisyShare, share_from_wire
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.privacy.accountant import epsilon_from_rdp, rdp_curve
from flwr_splitmix.runs import Run
from flwr_splitmix.schedule import constant
from flwr_splitmix.strategies import (
    DPSL,
    CutoutSL,
    DPCutMixSL,
    DPMixSL,
    ShuffledCutMixSL,
    SplitStrategy,
    VanillaCutMixSL,
)
from flwr_splitmix.testing.toy import Toy, sgd
from tests.observers.kept_events import KeptEvents

TOY = Toy(clients=4, batch_norm=False)
N, D = TOY.patches, TOY.width
DELTA = 1e-5
NOISE = GaussianNoise(sigma_s=20.0, sigma_y=10.0)
E_S, E_Y = 4 * N / (2 * 20.0**2), 2 / (2 * 10.0**2)
"""Slopes of a full release: patches of norm 1, and a one-hot label, replaced."""

Sent = dict[int, list[tuple[np.ndarray, float]]]
"""By client: the records of each batch that left it, and what that cost them."""


def epsilon(rho: float) -> float:
    return float(epsilon_from_rdp(rdp_curve(rho), DELTA)[0]) if rho else 0.0


class Honest(SplitClient):
    """Writes down what truly left it; may fail, or send nonsense, at one place of the run.

    It may also fail in all rounds up to one.
    """

    sent: Sent
    fails_at: tuple[int, int] | None = None
    fails_until = 0
    nonsense_at: tuple[int, int] | None = None
    fails_at_part: int | None = None

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        place = (self.order.server_round, arguments["number"])
        if place == self.fails_at or place[0] <= self.fails_until:
            raise RuntimeError("the battery is empty")
        reply = super().step(**arguments)
        if "smashed" not in reply:
            return reply
        cost = 0.0
        for entry, smashed in zip(arguments["plan"], reply["smashed"], strict=True):
            if entry is not None:
                share = share_from_wire(entry, SHARES)
                assert isinstance(share, NoisyShare)
                weight = share.lam if share.inner.family == "mixup" else 1.0
                patches = smashed.shape[1]  # noise on the kept patches: nothing else travels
                cost += E_S * weight**2 * patches / N + E_Y * share.lam**2
        self.sent.setdefault(self.order.client, []).append((self.batches.indices.copy(), cost))
        if place == self.nonsense_at:
            return {**reply, "smashed": [t * float("nan") for t in reply["smashed"]]}
        return reply

    @exchange
    def encode_part(self, *, part: int, **arguments: Any) -> dict[str, Any]:
        if part == self.fails_at_part:
            raise RuntimeError("the battery is empty")
        return super().encode_part(part=part, **arguments)


def truth(releases: Sent, client: int) -> float:
    """Return the epsilon of the record that was sent at the highest cost."""
    paid = np.zeros(100)
    for records, cost in releases.get(client, []):
        np.add.at(paid, records, cost)
    return epsilon(float(paid.max()))


@dataclass
class Outcome:
    strategy: SplitStrategy
    clients: Sequence[SplitClient]
    seen: KeptEvents
    sent: Sent = field(default_factory=dict)

    def by_server(self, client: int) -> float:
        assert self.strategy.ledger is not None
        return self.strategy.ledger.ledgers[client].epsilon(DELTA)

    def slopes(self, client: int) -> float:
        assert self.strategy.ledger is not None
        return float(self.strategy.ledger.ledgers[client].spent()[2])

    def by_client(self, client: int) -> float:
        guard = self.clients[client].guard
        assert guard is not None
        return guard.ledger.epsilon(DELTA)

    def said(self, client: int) -> str:
        assert self.strategy.ledger is not None
        return str(self.strategy.ledger.ledgers[client].statement(DELTA))


Prepare = Callable[[Sequence[Any]], None]


def run(
    kind: Any, toy: Toy = TOY, rounds: int = 1, *,
    budgets: Mapping[int, PrivacyBudget] | None = None, prepare: Prepare | None = None,
    watch: Sequence[Observer] = (), releases: Sent | None = None, repeatable: bool = False,
    benchmark: bool = False, **options: Any,
) -> Outcome:  # fmt: skip
    """Train; clients are new ones of each call, and go on from what the run's directory holds."""
    observer, releases = KeptEvents(), {} if releases is None else releases
    options = {"optimizer": sgd(0.1), "schedule": constant, "device": "cpu", **options}
    strategy = kind(toy.upper(), observers=[observer, *watch], **options)
    by_budget = {
        budget: toy.make_clients(
            sgd(0.1),
            kind=Honest,
            shares=strategy.mixer.shares,
            repeatable_secrets=repeatable,
            privacy=budget,
            benchmark_data=toy.test_data(0) if benchmark else None,
        )
        for budget in {None, *(budgets or {}).values()}
    }
    clients = [by_budget[(budgets or {}).get(client)][client] for client in range(toy.clients)]
    for client in clients:
        client.sent = releases  # type: ignore[attr-defined]
    if prepare is not None:
        prepare(clients)
    outcome = Outcome(strategy, clients, observer, releases)
    strategy.fit(clients, rounds)
    return outcome


noised = partial(partial, noise=NOISE)
"""A strategy's class with the noise of these tests."""


def passes(observer: KeptEvents, client: int, cost: Callable[[NoisyShare, Any], float]) -> float:
    """Add up the worst batch of each pass of 3 batches, what one costs being given."""
    worst: dict[int, float] = {}
    for place, step in enumerate(observer.steps):
        batch = 0.0
        for source in step.mixed.sources:
            ratios = [member.share.lam for member in source.members]
            for member in source.members:
                if member.client == client:
                    assert isinstance(member.share, NoisyShare)
                    batch += cost(member.share, ratios)
        worst[place // 3] = max(worst.get(place // 3, 0.0), batch)
    return sum(worst.values())


FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "DPSL": (DPSL, {}),
    "DPMixSL": (DPMixSL, {"alpha": 1.0}),
    "DPCutMixSL": (DPCutMixSL, {"alpha": 1.0}),
    "k-times": (DPCutMixSL, {"k": 3, "k_times": True}),
    "by sample": (DPCutMixSL, {"mask_per_sample": True, "alpha": 1.0}),
    "vanilla": (VanillaCutMixSL, {}),
    "cutout": (CutoutSL, {}),
    "shuffled": (ShuffledCutMixSL, {}),
}


def check_order(outcome: Outcome, clients: Sequence[int]) -> None:
    """Assert that no ledger says less than what was sent, and the client's never more."""
    for client in clients:
        exact = outcome.by_client(client)
        assert truth(outcome.sent, client) <= exact * (1 + 1e-9), client
        assert exact <= outcome.by_server(client) * (1 + 1e-9), client
        assert math.isfinite(outcome.by_server(client))


def limits(*budgets: float | None) -> dict[int, PrivacyBudget]:
    """Give each client a budget; averaging, which no epsilon covers, is allowed."""
    return {
        client: PrivacyBudget(delta=DELTA, max_epsilon=limit, allow_averaging=True)
        for client, limit in enumerate(budgets)
    }


def new_run(home: Path) -> Run:
    return Run.create({}, name="dp", home=home)
