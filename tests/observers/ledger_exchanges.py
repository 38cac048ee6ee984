"""A client's exchanges with a server, as the server's ledger sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr_splitmix.description import SplitDescription, read_description
from flwr_splitmix.events import Exchange, RoundBegun, RoundDone
from flwr_splitmix.mixers import (
    NoisyShare,
    PatchShare,
    Share,
)
from flwr_splitmix.observers import PrivacyLedger
from flwr_splitmix.privacy import GaussianNoise

DELTA = 1e-5
N, D, L = 8, 4, 3
NOISE = GaussianNoise(sigma_s=20.0, sigma_y=10.0)
E_S, E_Y = 4 * N / (2 * 20.0**2), 2 / (2 * 10.0**2)
FULL = E_S + E_Y
DESCRIBED = {
    "batch-size": 4, "num-examples": 12, "prefix": 0, "patches": N, "width": D, "state-round": 0,
}  # fmt: skip


def says(server_round: int = 1, **changed: Any) -> SplitDescription:
    """Return what a client says at the begin of a round, by key, if it finished the one before."""
    description = read_description({**DESCRIBED, "state-round": server_round - 1, **changed})
    assert isinstance(description, SplitDescription)
    return description


def noisy(inner: Share, **changes: Any) -> NoisyShare:
    return NoisyShare.around(inner, replace(NOISE, **changes), L)


def mask(count: int) -> NoisyShare:
    return noisy(PatchShare(lam=count / N, patches=N, seed=1, start=0, stop=count))


def cost(count: int) -> float:
    return E_S * count / N + E_Y * (count / N) ** 2


def begin(
    ledger: PrivacyLedger, server_round: int = 1, *, earlier: Sequence[int | None] = (),
    averaged: bool = False,
    clients: Sequence[int] = (0,), described: Mapping[str, Any] | None = None,
    rounded: bool = False,
) -> None:  # fmt: skip
    attempts = dict.fromkeys(clients, earlier)
    descriptions = dict.fromkeys(clients, says(server_round, **(described or {})))
    ledger.on_begin(RoundBegun(server_round, attempts, averaged, descriptions, rounded=rounded))


def send(
    ledger: PrivacyLedger, *shares: Share | None, client: int = 0, answers: bool = True
) -> None:
    """Let a client be asked for shares, and answer with as many tensors."""
    plan = [None if share is None else share.to_wire() for share in shares]
    ledger.on_exchange(Exchange(1, client, "step", "down", {"plan": plan}, 0))
    if answers:
        ledger.on_exchange(Exchange(1, client, "step", "up", {"smashed": [], "labels": []}, 0))


def end(ledger: PrivacyLedger, server_round: int, failures: Sequence[int] = ()) -> None:
    why = dict.fromkeys(failures, "no reply")
    ledger.on_round(
        RoundDone(
            server_round=server_round,
            num_rounds=9,
            seconds=1.0,
            steps=1,
            step_seconds=1.0,
            clients_alive=1,
            failures=why,
        )
    )


def spent(ledger: PrivacyLedger, client: int = 0) -> float:
    return float(ledger.ledgers[client].spent()[2])


def evaluate(ledger: PrivacyLedger, kind: str, client: int = 0) -> None:
    reply: dict[str, list[int]] = {"smashed": [], "labels": []}
    ledger.on_exchange(Exchange(1, client, "any", "down", {"kind": kind}, 0, "evaluate"))
    ledger.on_exchange(Exchange(1, client, "any", "up", reply, 0, "evaluate"))
