"""A check of the first round before a run begins, so that impossible settings end it early."""

from __future__ import annotations

import time

import numpy as np
import torch
from flwr.serverapp import Grid

from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.clients.input_mixing import mix_inputs
from flwr_splitmix.mixers import InputShare, SmashedShape
from flwr_splitmix.segments import Geometry
from flwr_splitmix.strategies import SplitStrategy

SETTLED_SECONDS = 2.0
"""A simulation registers its nodes while its ServerApp starts; then their number stays as it is."""


def check_first_round(
    strategy: SplitStrategy, config: VisionConfig, geometry: Geometry, grid: Grid
) -> None:
    """Raise what the first round would: too few nodes for a group, no plan for such patches.

    Also raised is what a client would say of images that the plan cannot divide.

    Raises
    ------
    ValueError, ClientError
        As the strategy, its mixer and the client do.
    """
    clients = clients_of_a_round(strategy, grid)
    shape = SmashedShape(
        config.batch_size,
        geometry.patches,
        geometry.width,
        geometry.prefix,
        geometry.grid,
        strategy.upper.num_classes,
    )
    plan = strategy.mixer.plan(range(clients), shape, np.random.default_rng(0))
    # Any image will do: the cells are a matter of its size.
    image = torch.zeros(1, *images_of(config).train.shape)
    batch = image, torch.zeros(1, dtype=torch.int64)
    for share in plan.shares(0):
        if isinstance(share, InputShare):
            mix_inputs(share, lambda _: batch)


def clients_of_a_round(strategy: SplitStrategy, grid: Grid) -> int:
    """Return how many clients a round will have, as far as nodes are there already.

    Raises
    ------
    ValueError
        If they are too few for the strategy, and no more of them come.
    """
    nodes, since = 0, time.monotonic()
    while True:
        if (there := len(list(grid.get_node_ids()))) != nodes:
            nodes, since = there, time.monotonic()
        wanted = max(strategy.min_nodes, round(strategy.fraction_train * nodes))
        settled = time.monotonic() > since + SETTLED_SECONDS
        if nodes < strategy.min_nodes and settled:
            return wanted  # the link waits for them, and says how long
        try:
            strategy.check_clients(min(wanted, nodes))
        except ValueError:
            if settled:
                raise
            time.sleep(0.05)
        else:
            return wanted
