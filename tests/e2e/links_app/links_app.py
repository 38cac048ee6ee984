"""Law 4's two sides: every strategy on a toy with dropout and BatchNorm, over whatever link."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from block_cutmix import BlockCutMix, BlockShare
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from flwr_splitmix import Run, SplitClient, SplitClientApp, adamw
from flwr_splitmix.strategies import STRATEGIES, SplitStrategy
from flwr_splitmix.testing.toy import Toy

TOY = Toy(clients=4, tests=6)
ROUNDS = 2
MAKERS: dict[str, Any] = {
    **STRATEGIES,
    "BlockCutMix": partial(SplitStrategy, mixer=BlockCutMix()),
}


def make_strategy(name: str, home: str) -> SplitStrategy:
    """Make one of the strategies, with a run directory below `home`."""
    strategy: SplitStrategy = MAKERS[name](
        TOY.upper(),
        optimizer=adamw(0.01),
        device="cpu",
        seed=7,
        evaluation="federated",
        run=Run.create({"strategy": name}, name=name.lower(), home=home),
    )
    return strategy


def make_clients() -> list[SplitClient]:
    """Make the clients, anew."""
    return list(TOY.make_clients(adamw(0.01), shares=(BlockShare,)))


def client_fn(context: Context) -> SplitClient:
    """Make one of the clients."""
    return make_clients()[int(context.node_config["partition-id"])]


server = ServerApp()
client = SplitClientApp(client_fn)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run every strategy, one after the other, in one Flower run."""
    torch.set_num_threads(1)
    for name in MAKERS:
        arrays = ArrayRecord(TOY.lower().state_dict())
        make_strategy(name, str(context.run_config["out"])).start(grid, arrays, ROUNDS)
