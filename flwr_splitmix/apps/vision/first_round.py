"""Check of the first round before a run begins, so that impossible settings fail early."""

from __future__ import annotations

import time

import numpy as np
import torch
from flwr.serverapp import Grid

from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.split.input_mixing import mix_inputs
from flwr_splitmix.mixers import InputShare, Plan, SmashedShape
from flwr_splitmix.mixers.elsewhere import MixedElsewhere
from flwr_splitmix.segments import Geometry
from flwr_splitmix.server.nodes.participants import size_of_draw
from flwr_splitmix.strategies import SplitStrategy
from flwr_splitmix.words import counted

SETTLED_SECONDS = 2.0
"""Time without new nodes after which their number is final: a simulation adds them at its start."""

_MAX_NODES = 10_000  # SuperNodes


def check_first_round(
    strategy: SplitStrategy, config: VisionConfig, geometry: Geometry, grid: Grid
) -> None:
    """Raise the errors of the first round, such as too few nodes or no plan for the patches.

    The clients' errors for images that the plan cannot divide are among them.

    Raises
    ------
    ValueError, ClientError
        Raised by the strategy, its mixer and the client.
    """
    check_plan(strategy, config, geometry, clients_of_a_round(strategy, grid))


def check_plan(
    strategy: SplitStrategy, config: VisionConfig, geometry: Geometry, clients: int
) -> None:
    """Raise the errors of the first round's plan for a number of clients.

    Raises
    ------
    ValueError, ClientError
        Raised by the strategy's mixer and the client.
    """
    plan = first_plan(strategy, config, geometry, clients)
    # Any image will do: only its size matters.
    image = torch.zeros(1, *images_of(config).train.shape)
    batch = image, torch.zeros(1, dtype=torch.int64)
    for share in plan.shares(0):
        if isinstance(share, InputShare):
            try:
                mix_inputs(share, lambda _: batch)
            except ClientError as error:
                raise ClientError(
                    f"{error}; patch-size, cut-at and cell set the grid of patches"
                ) from None


def first_plan(
    strategy: SplitStrategy, config: VisionConfig, geometry: Geometry, clients: int
) -> Plan:
    """Return a plan such as that of a first step of so many clients.

    Raises
    ------
    ValueError
        Raised by the strategy's mixer.
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
    return mixer.plan(range(clients), shape, np.random.default_rng(0))


def in_a_round(strategy: SplitStrategy, nodes: int) -> int:
    """Return the number of nodes that a round needs, given the number of all nodes."""
    return size_of_draw(nodes, strategy.min_nodes, strategy.fraction_train)


def check_number(strategy: SplitStrategy, nodes: int) -> None:
    """Raise an error if a federation of `nodes` SuperNodes is too small for the strategy.

    Raises
    ------
    ValueError
        With the size of the federation, and how to enlarge it.
    """
    try:
        strategy.check_clients(min(in_a_round(strategy, nodes), nodes))
    except ValueError as error:
        share = f", of which fraction-train {strategy.fraction_train:g} takes part in a round"
        raise ValueError(
            f"{error}: the federation has {counted(nodes, 'SuperNode')}"
            + (share if strategy.fraction_train < 1 else "")
            + _enough(strategy, nodes)
        ) from None


def _enough(strategy: SplitStrategy, nodes: int) -> str:
    """Return the clause on how many SuperNodes are enough and how to start them, or ""."""
    for needed in range(nodes + 1, _MAX_NODES):
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
    """Return the number of clients per round, according to the nodes connected so far.

    Raises
    ------
    ValueError
        If they are too few for the strategy, and none is added for `SETTLED_SECONDS`.
    """
    nodes, since = 0, time.monotonic()
    while True:
        if (connected := len(list(grid.get_node_ids()))) != nodes:
            nodes, since = connected, time.monotonic()
        settled = time.monotonic() > since + SETTLED_SECONDS
        if nodes < strategy.min_nodes and settled:
            return in_a_round(strategy, nodes)  # the link waits for more, and logs how long
        try:
            check_number(strategy, nodes)
        except ValueError:
            if settled:
                raise
            time.sleep(0.05)
        else:
            return in_a_round(strategy, nodes)
