"""A home with tiny runs that `fit` made: two seeds of a method, another method, one with noise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flwr_splitmix.clients import ClientError, Order, SplitClient
from flwr_splitmix.observers import KeptMixtures, Observer
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import PSL, CutMixSL, DPCutMixSL, SplitStrategy
from flwr_splitmix.testing.toy import Toy

ROUNDS = 3
CLIENTS = 3
FAILING = 2
SECRET = "<b>a reason & more</b>"
"""The failing client's message: a page must show it, and not as markup."""

TOY = Toy(clients=CLIENTS, tests=6)


class FailsInRoundTwo(SplitClient):
    """A client that takes part in no second round."""

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """Attach, but not to the second round."""
        if order.server_round == 2:
            raise ClientError(SECRET)
        return super().attach(order, arrays)


def add_run(
    home: Path,
    kind: type[SplitStrategy],
    *,
    config: Mapping[str, Any] | None = None,
    observers: tuple[Observer, ...] = (),
    rounds: int = ROUNDS,
    **options: Any,
) -> Run:
    """Do a run of three clients, of which one fails in the second round."""
    seed = int(options.get("seed", 0))
    run_config = {
        "strategy": kind.__name__, "seed": seed, "num-server-rounds": rounds, "dataset": "toy",
        "delta": 1e-5, "run-dir": str(home), **(config or {}),
    }  # fmt: skip
    run = Run.create(run_config, name=kind.__name__, home=home)
    strategy = kind(
        TOY.upper(), device="cpu", steps_per_round=2, run=run, evaluation="federated",
        observers=observers, **options,
    )  # fmt: skip
    clients = list(TOY.make_clients(shares=strategy.mixer.shares))
    clients[FAILING] = TOY.make_clients(kind=FailsInRoundTwo, shares=strategy.mixer.shares)[FAILING]
    strategy.fit(clients, rounds)
    return Run.open(run.id, home=home)


def make_home(home: Path) -> Path:
    """Make the runs; labels are "mixed" (two seeds), "plain" and "noisy"."""
    for seed in (0, 1):
        add_run(
            home, CutMixSL, config={"label": "mixed", "k": 2}, observers=(KeptMixtures(2),),
            seed=seed, k=2,
        )  # fmt: skip
    add_run(home, PSL, config={"label": "plain"})
    noise = GaussianNoise(sigma_s=1.0, sigma_y=1.0, clip="range", clip_norm=1.0)
    add_run(home, DPCutMixSL, config={"label": "noisy", "k": 2}, k=2, noise=noise)
    return home
