"""The vision ServerApp: strategy and run, from the run configuration."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid
from torch import Tensor

from flwr_splitmix.apps.beginning import begin
from flwr_splitmix.apps.vision import ushape
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.apps.vision.first_round import check_first_round
from flwr_splitmix.apps.vision.inputs import check_inputs, record_inputs
from flwr_splitmix.apps.vision.model import segments_of
from flwr_splitmix.apps.vision.partitions import MIN_TIMEOUT, ask_partitions, labels_of_clients
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.attack_recording import write_facts
from flwr_splitmix.server.aggregation import make_aggregator
from flwr_splitmix.server.record.flower_grid import given_to
from flwr_splitmix.strategies import STRATEGIES, SplitStrategy, central_evaluation


def train(grid: Grid, context: Context) -> None:
    """Start a run, or continue one.

    Raises
    ------
    ConfigError, DataError, ValueError
        If configuration, data or nodes are unsuitable, before the run gets a directory.
    RunError
        If there is no run to continue, it is still running, or its data have changed.
    LinkError
        If too few clients are left, or no node answers.
    """
    config, resumed = VisionConfig.of_run(context.run_config, given_to(grid))
    if resumed is not None:
        check_inputs(resumed, config)
    if config.server_threads:
        torch.set_num_threads(config.server_threads)
    if config.ushape:
        _train_ushape(config, resumed, grid, context)
    else:
        _train_split(config, resumed, grid, context)


def _train_split(config: VisionConfig, resumed: Run | None, grid: Grid, context: Context) -> None:
    images, segments = images_of(config), segments_of(config)
    make = partial(make_strategy, config, segments.upper)
    # Errors are raised before the run gets a directory.
    if resumed is None or not resumed.checkpoints.rounds():
        check_first_round(make(None), config, segments.lower.geometry, grid)
    min_nodes = make(None).min_nodes
    labels = labels_of_clients(config, grid, min_nodes) if config.needs_labels else []
    run = _begun(config, resumed, context)
    if config.record_attacks and resumed is None:
        timeout = max(config.attach_timeout, MIN_TIMEOUT)
        clients = len(labels) or ask_partitions(grid, min_nodes, timeout)
        write_facts(run, {"clients": clients})
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


def _train_ushape(config: VisionConfig, resumed: Run | None, grid: Grid, context: Context) -> None:
    # Errors are raised before the run gets a directory.
    ushape.make_strategy(config, None)
    ushape.try_client(config)
    strategy = ushape.make_strategy(config, _begun(config, resumed, context))
    evaluate_fn = None
    if config.evaluation_kind == "central":
        evaluate_fn = ushape.central_evaluation(config, strategy)
    strategy.start(
        grid,
        initial_arrays=ushape.initial_arrays(config),
        num_rounds=config.num_server_rounds,
        evaluate_fn=evaluate_fn,
    )


def _begun(config: VisionConfig, resumed: Run | None, context: Context) -> Run:
    """Create a run's directory, or use that of a run that is continued."""
    name = config.strategy.lower()
    run = resumed or Run.create(context.run_config, name=name, home=config.home)
    if resumed is None:
        record_inputs(run, images_of(config))
    begin(run)
    return run


def make_strategy(
    config: VisionConfig, upper: torch.nn.Module, run: Run | None, labels: Sequence[Tensor] = ()
) -> SplitStrategy:
    """Make the configured strategy of the L shape; `labels` is for those that need them.

    Raises
    ------
    ValueError
        Raised by the strategy.
    LinkError
        If the stream's address or certificates are wrong.
    """
    options: dict[str, Any] = config.own_options() | config.privacy_options()
    if config.needs_labels:
        options["labels"] = labels
    if config.averages:
        options["aggregator"] = make_aggregator(config.aggregator)
    return STRATEGIES[config.strategy](
        upper,
        schedule=config.schedule(),
        server_update=config.server_update,
        pace=config.pace,
        micro_batches=config.micro_batches,
        device=config.device,
        multi_label=images_of(config).multi_label,
        min_nodes=config.min_nodes or None,
        evaluation=config.evaluation_over_link,
        **options,
        **config.training_options(run),
    )
