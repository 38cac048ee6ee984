"""A mixer of one's own, in one file: each member of a group keeps one run of patches.

`PatchCutMix` keeps patches at random positions. Here a member keeps a contiguous run of them in
raster order (row after row, from the last patch on to the first), so that what the upper segment
sees is a few large pieces of several images. `python examples/block_cutmix.py` trains with it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from flwr_splitmix import SplitClient, split_vision_model
from flwr_splitmix.data import client_split, load_images
from flwr_splitmix.mixers import (
    Group,
    MaskShare,
    Member,
    Mixer,
    Plan,
    SmashedShape,
    sample_counts,
)
from flwr_splitmix.strategies import SplitStrategy, central_evaluation


# The client's part of a plan. Only its plain values travel; `MaskShare` makes upload, mixture and
# gradient from the positions, at the client and at the server alike.
@dataclass(frozen=True, kw_only=True)
class BlockShare(MaskShare):
    """The `length` patches from `start` on, in raster order and around the end."""

    name: ClassVar[str] = "block"  # how a client recognises the share
    start: int
    length: int

    def positions(self, batch: int) -> Tensor:
        """Return the kept patches, the same for every sample of the batch."""
        return (self.start + torch.arange(self.length)) % self.patches

    def count(self) -> int:
        """Return how many there are."""
        return self.length


# The server's part: who is mixed with whom, and who keeps which patches. `Mixer` does the rest.
class BlockCutMix(Mixer):
    """Exclusive, exhaustive runs of patches over groups of `k` clients.

    Parameters
    ----------
    k
        Clients in a mixing group; what is left over forms a smaller group, a single client alone.
    alpha
        Concentration of the mixing ratios; None is as even as possible.
    """

    shares = (*Mixer.shares, BlockShare)

    def __init__(self, k: int = 2, alpha: float | None = 6.0) -> None:
        if k < 2:
            raise ValueError(f"k is {k}; a mixing group needs at least 2 clients")
        self.k = self.min_members = k
        self.alpha = alpha

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Draw the groups, then the runs of each. All draws come from `rng`: a run repeats."""
        order = rng.permutation(list(members))
        groups = [order[i : i + self.k] for i in range(0, len(order), self.k)]
        return Plan(shape, (tuple(self._group(clients, shape, rng) for clients in groups),))

    def _group(self, clients: np.ndarray, shape: SmashedShape, rng: np.random.Generator) -> Group:
        n = shape.patches
        # The counts sum to n, and each run starts where the one before it ends: the masks cover
        # every patch once. The ratio is the realised count over n.
        counts = sample_counts(n, len(clients), self.alpha, rng)
        starts = (rng.integers(n) + np.cumsum(counts) - counts) % n
        return Group(
            tuple(
                Member(
                    int(client),
                    BlockShare(
                        lam=int(length) / n,
                        patches=n,
                        prefix=shape.prefix,
                        start=int(start),
                        length=int(length),
                    ),
                )
                for client, start, length in zip(clients, starts, counts, strict=True)
            )
        )


def main(num_clients: int = 4, seed: int = 0) -> float:
    """Train one round of a small vision transformer in this process; returns the accuracy."""
    images = load_images("fashion-mnist-small")
    lower, upper = split_vision_model(patch_size=8, depth=1, embed_dim=96, seed=seed)
    clients = [
        SplitClient(
            copy.deepcopy(lower),
            client_split(images, index, num_clients)[0],
            batch_size=25,
            shares=(BlockShare,),  # a client takes only the kinds of shares that it was given
        )
        for index in range(num_clients)
    ]
    strategy = SplitStrategy(upper, mixer=BlockCutMix(k=2), aggregator=FedAvg(), seed=seed)
    test = central_evaluation(strategy.upper, lower, images.test)
    result = strategy.fit(clients, num_rounds=1, evaluate_fn=test)
    accuracy = result.evaluate_metrics_serverapp[1]["accuracy"]
    assert isinstance(accuracy, float)
    return accuracy


if __name__ == "__main__":
    print(f"top-1 on the 2,000 test images: {main():.3f}")
