"""A client with a privacy guard, noisy shares, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flwr_splitmix.clients import Order, SplitClient
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.mixers import NoisyShare, PatchShare, Share
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


def mask(count: int, **changes: Any) -> NoisyShare:
    return noisy(PatchShare(lam=count / N, patches=N, seed=1, start=0, stop=count), **changes)


def cost(count: float, lam: float | None = None) -> float:
    """Return the slope of a release of so many patches of norm 1 and of a label times `lam`."""
    lam = count / N if lam is None else lam
    return 4 * count / (2 * 20.0**2) + 2 * lam**2 / (2 * 10.0**2)


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
