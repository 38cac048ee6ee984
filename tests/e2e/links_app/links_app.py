"""Law 4's two sides: every mixer on a toy with dropout, over whatever link."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from block_cutmix import BlockCutMix, BlockShare
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch.utils.data import TensorDataset

from flwr_splitmix import RayLink, Run, SplitClientApp, UShapeClient, adamw
from flwr_splitmix.clients import Client
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.links.ray.actor import RayHost
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.segments import VisionParts, split_vision_parts
from flwr_splitmix.server.rounds import RoundLoop
from flwr_splitmix.strategies import STRATEGIES, USHAPE_STRATEGIES, SplitStrategy, USplitFL
from flwr_splitmix.testing.toy import AnyToy, Toy
from flwr_splitmix.testing.toy_texts import text_toy

CLIENTS = 4
ROUNDS = 2
EDGES: dict[str, dict[str, Any]] = {
    "PatchShuffleSL": {"method": "patch", "kappa": 1.0},
    "BatchShuffleSL": {"method": "batch", "kappa": 0.4},
    "SpectralShuffleSL": {"method": "spectral", "kappa": 1.0},
}
"""Options of the edges that the strategies with frozen edges need."""

IMAGES = "USplitFL of images"

NOISE = GaussianNoise(sigma_s=0.1, sigma_y=0.05)


LABELS = Toy(clients=CLIENTS).labels()

MIXING = {
    name: kind
    for name, kind in STRATEGIES.items()
    if not kind.averages or name in ("SFL", "CutMixSFL")
}
"""Every mixer once; what averaging adds, once without mixing and once with it."""

MAKERS: dict[str, Any] = {
    **MIXING,
    **{name: partial(STRATEGIES[name], labels=LABELS) for name in EDGES},
    **{name: partial(STRATEGIES[name], noise=NOISE) for name in MIXING if name[:2] == "DP"},
    "BlockCutMix": partial(SplitStrategy, mixer=BlockCutMix()),
    **USHAPE_STRATEGIES,
    IMAGES: USplitFL,
}


def parts() -> VisionParts:
    """Cut a ViT in three, anew."""
    return split_vision_parts(
        image_size=16, patch_size=8, depth=3, embed_dim=8, num_heads=2, seed=0
    )


def clients_with_images() -> list[Client]:
    """Make U-shaped clients with images."""
    clients: list[Client] = []
    for index in range(CLIENTS):
        source = torch.Generator().manual_seed(index)
        images = torch.rand(6, 1, 16, 16, generator=source)
        data: Any = TensorDataset(images, torch.randint(10, (6,), generator=source))
        head, _, tail = parts()
        clients.append(
            UShapeClient(
                head, tail, data, batch_size=3, test_data=data, optimizer=adamw(0.01), device="cpu"
            )
        )
    return clients


def toy_for(name: str) -> AnyToy:
    """Make the toy whose clients are of the kind that a strategy needs."""
    if name in USHAPE_STRATEGIES:
        return text_toy(name, clients=CLIENTS, tests=6)
    return Toy(clients=CLIENTS, tests=6, edge=EDGES.get(name))


class KeptHost(RayLink):
    """Keeps its host, whose start takes seconds, for the next strategy, which finds it empty."""

    def open(self, grid: Grid | None) -> None:
        """Start the host, or empty the one that stands."""
        if not self.handles:
            super().open(grid)
        import ray

        threads, state_dir = self.hosts.threads, str(self.hosts.state_dir)
        anew = [
            host.__ray_call__.remote(RayHost.__init__, threads, state_dir) for host in self.handles
        ]
        ray.get(anew)

    def close(self) -> None:
        """Leave the host to the next strategy; it ends with the run."""


def make_strategy(name: str, home: str, link: RayLink | None = None) -> RoundLoop:
    """Make one of the strategies, with a run directory below `home`."""
    run = Run.create({"strategy": name}, name=name.lower(), home=home)
    strategy: RoundLoop = MAKERS[name](
        parts().trunk if name == IMAGES else toy_for(name).server(),
        optimizer=adamw(0.01),
        device="cpu",
        seed=7,
        evaluation="federated",
        link=link,
        run=run,
    )
    if link is not None:
        link.hosts.state_dir = run.clients_dir
    return strategy


def make_clients(name: str) -> list[Client]:
    """Make the clients of a strategy, anew."""
    if name == IMAGES:
        return clients_with_images()
    toy = toy_for(name)
    if isinstance(toy, Toy):
        return list(toy.make_clients(adamw(0.01), shares=(BlockShare,)))
    return list(toy.clients_for(None, adamw(0.01)))


def client_fn(context: Context) -> Client:
    """Make one of the clients of the strategy in progress, whose name the server left in a file."""
    name = Path(str(context.run_config["out"]), "strategy.txt").read_text()
    return make_clients(name)[int(context.node_config["partition-id"])]


server = ServerApp()
client = SplitClientApp(client_fn)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run all strategies, one after the other, in one Flower run."""
    torch.set_num_threads(1)
    out = Path(str(context.run_config["out"]))
    out.mkdir(exist_ok=True)
    link = KeptHost(num_hosts=1)
    for name in MAKERS:
        (out / "strategy.txt").write_text(name)
        arrays = to_arrays(make_clients(name)[0].weights())
        make_strategy(name, str(out), link).start(grid, arrays, ROUNDS)
