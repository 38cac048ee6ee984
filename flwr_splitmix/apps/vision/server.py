"""The ServerApp: from the run configuration to a strategy, and the run."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as flower
from torch import Tensor

from flwr_splitmix import Run
from flwr_splitmix.clients.input_mixing import mix_inputs
from flwr_splitmix.links import LinkError
from flwr_splitmix.links.polling import error_sentence, send_and_wait
from flwr_splitmix.mixers import InputShare, SmashedShape
from flwr_splitmix.segments import Geometry
from flwr_splitmix.strategies import STRATEGIES, SplitStrategy, central_evaluation

from vision_config import VisionConfig

app = ServerApp()

SETTLED_SECONDS = 2.0
"""A simulation registers its nodes while this app starts; then their number stays as it is."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train one run, or continue one."""
    config, resumed = VisionConfig.of_run(context.run_config)
    images, segments = config.images(), config.segments()
    if config.server_threads:
        torch.set_num_threads(config.server_threads)
    make = partial(make_strategy, config, segments.upper)
    # What can be refused is refused before the run has a directory.
    check_first_round(make(None), config, segments.lower.geometry, grid)
    labels = labels_of_clients(config, grid) if config.needs_labels else []
    run = resumed or Run.create(context.run_config, name=config.strategy.lower(), home=config.home)
    strategy = make(run, labels)
    evaluate_fn = None
    if config.evaluation_kind == "central":
        evaluate_fn = central_evaluation(strategy.upper, copy.deepcopy(segments.lower), images.test)
    strategy.start(
        grid,
        initial_arrays=ArrayRecord(segments.lower.state_dict()),
        num_rounds=config.num_server_rounds,
        evaluate_fn=evaluate_fn,
    )


def make_strategy(
    config: VisionConfig, upper: torch.nn.Module, run: Run | None, labels: Sequence[Tensor] = ()
) -> SplitStrategy:
    """Make the strategy that the configuration names; `labels` are for those that need them."""
    options: dict[str, Any] = config.own_options() | config.privacy_options()
    if config.needs_labels:
        options["labels"] = labels
    if config.averages:
        kind: type[flower.FedAvg] = getattr(flower, config.aggregator)
        options["aggregator"] = kind(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    return STRATEGIES[config.strategy](
        upper,
        **options,
        optimizer=config.optimizer(),
        schedule=config.schedule(),
        server_update=config.server_update,
        device=config.device,
        precision=config.precision,
        steps_per_round=config.steps_per_round or None,
        epochs_per_round=config.epochs_per_round,
        fraction_train=config.fraction_train,
        min_nodes=config.min_nodes or None,
        evaluation=config.evaluation_over_link,
        evaluate_every=config.evaluate_every,
        checkpoint_every=config.checkpoint_every,
        seed=config.seed,
        run=run,
        link=config.make_link(run),
    )


def check_first_round(
    strategy: SplitStrategy, config: VisionConfig, geometry: Geometry, grid: Grid
) -> None:
    """Raise what the first round would: too few nodes for a group, no plan for such patches.

    Also raised is what a client would say of images that the plan cannot divide.
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
    batch = torch.zeros(1, *config.images().train.shape), torch.zeros(1, dtype=torch.int64)
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
        if (found := len(list(grid.get_node_ids()))) != nodes:
            nodes, since = found, time.monotonic()
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


def labels_of_clients(config: VisionConfig, grid: Grid) -> list[Tensor]:
    """Return each client's labels, by its index, in the order of its images."""
    clients = ask_partitions(grid, max(config.attach_timeout, 120.0))
    return [torch.tensor(config.client_images(i, clients)[0].labels) for i in range(clients)]


def ask_partitions(grid: Grid, timeout: float) -> int:
    """Ask a node into how many parts the data are divided.

    The number of nodes need not be it: it grows while they connect, and a part may have no node.

    Raises
    ------
    LinkError
        If no node answers within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not (nodes := sorted(grid.get_node_ids())):
        if time.monotonic() > deadline:
            raise LinkError(f"no node was there within {timeout:g} s")
        time.sleep(0.2)
    content = RecordDict({"partitions": ConfigRecord({})})
    message = Message(content, dst_node_id=nodes[0], message_type="query.partitions")
    reply = send_and_wait(grid, [message], timeout).get(nodes[0])
    if reply is None or reply.has_error():
        reason = f"no answer within {timeout:g} s" if reply is None else error_sentence(reply)
        raise LinkError(f"no node said into how many parts the data are divided: {reason}")
    return int(str(reply.content.config_records["partitions"]["number"]))
