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
from flwr_splitmix.mixers.elsewhere import MixedElsewhere
from flwr_splitmix.segments import Geometry
from flwr_splitmix.strategies import SplitStrategy

SETTLED_SECONDS = 2.0
"""A simulation registers its nodes while its ServerApp starts; then their number stays as it is."""

_MOST = 10_000  # SuperNodes


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
    check_plan(strategy, config, geometry, clients_of_a_round(strategy, grid))


def check_plan(
    strategy: SplitStrategy, config: VisionConfig, geometry: Geometry, clients: int
) -> None:
    """Raise what the first round's plan for so many clients would.

    Raises
    ------
    ValueError, ClientError
        As the strategy's mixer and the client do.
    """
    shape = SmashedShape(
        config.batch_size,
        geometry.patches,
        geometry.width,
        geometry.prefix,
        geometry.grid,
        strategy.upper.num_classes,
    )
    mixer = strategy.mixer.mixer if isinstance(strategy.mixer, MixedElsewhere) else strategy.mixer
    plan = mixer.plan(range(clients), shape, np.random.default_rng(0))
    # Any image will do: the cells are a matter of its size.
    image = torch.zeros(1, *images_of(config).train.shape)
    batch = image, torch.zeros(1, dtype=torch.int64)
    for share in plan.shares(0):
        if isinstance(share, InputShare):
            mix_inputs(share, lambda _: batch)


def in_a_round(strategy: SplitStrategy, nodes: int) -> int:
    """Return how many of so many nodes a round wants."""
    return max(strategy.min_nodes, round(strategy.fraction_train * nodes))


def check_number(strategy: SplitStrategy, nodes: int) -> None:
    """Raise an error if a federation of so many SuperNodes is too small for the strategy.

    Raises
    ------
    ValueError
        With the size of the federation, and how there are more.
    """
    try:
        strategy.check_clients(min(in_a_round(strategy, nodes), nodes))
    except ValueError as error:
        share = f", of which fraction-train {strategy.fraction_train:g} takes part in a round"
        raise ValueError(
            f"{error}: the federation has {nodes} SuperNodes"
            + (share if strategy.fraction_train < 1 else "")
            + _enough(strategy, nodes)
        ) from None


def _enough(strategy: SplitStrategy, nodes: int) -> str:
    """Say how many SuperNodes are enough, if any number is, and how there are so many."""
    for needed in range(nodes + 1, _MOST):
        try:
            strategy.check_clients(in_a_round(strategy, needed))
        except ValueError:
            continue
        return (
            f"; {needed} are enough (in a simulation `splitmix run --nodes {needed}`, or `flwr run "
            f"--federation-config 'num-supernodes={needed}'`)"
        )
    return ""


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
        settled = time.monotonic() > since + SETTLED_SECONDS
        if nodes < strategy.min_nodes and settled:
            return in_a_round(strategy, nodes)  # the link waits for them, and says how long
        try:
            check_number(strategy, nodes)
        except ValueError:
            if settled:
                raise
            time.sleep(0.05)
        else:
            return in_a_round(strategy, nodes)
