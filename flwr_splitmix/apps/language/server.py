"""The language ServerApp: trunk, strategy and run, from the run configuration."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid

from flwr_splitmix.apps.beginning import begin
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.inputs import check_inputs, record_inputs
from flwr_splitmix.apps.language.model import build_parts, initial_segments
from flwr_splitmix.apps.language.placing import trunk_devices
from flwr_splitmix.apps.language.trial import try_layers
from flwr_splitmix.runs import Run
from flwr_splitmix.segments.language import Trunk
from flwr_splitmix.segments.language.placement import is_placed
from flwr_splitmix.server.aggregation import make_aggregator
from flwr_splitmix.server.record.flower_grid import given_to
from flwr_splitmix.server.segments.base import PLACED
from flwr_splitmix.strategies import USHAPE_STRATEGIES, UShapeStrategy


def train(grid: Grid, context: Context) -> None:
    """Start a run, or continue one.

    Raises
    ------
    ConfigError, ValueError
        If configuration or model are unsuitable, before the run gets a directory.
    RunError
        If there is no run to continue, it is still running, or its classes have changed.
    LinkError
        If too few clients are left.
    """
    config, resumed = LanguageConfig.of_run(context.run_config, given_to(grid))
    if resumed is not None:
        check_inputs(resumed, config)
    if config.server_threads:
        torch.set_num_threads(config.server_threads)
    # Errors are raised before the run gets a directory.
    trunk = build_trunk(config)
    make_strategy(config, trunk, None)
    try_layers(config)
    initial = initial_arrays(config)
    run = resumed or Run.create(context.run_config, name=config.strategy.lower(), home=config.home)
    if resumed is None:
        record_inputs(run, config)
    begin(run)
    make_strategy(config, trunk, run).start(
        grid, initial_arrays=initial, num_rounds=config.num_server_rounds
    )


def build_trunk(config: LanguageConfig) -> Trunk:
    """Build the server's part of the model; if it needs several devices, it is placed on them.

    Raises
    ------
    ConfigError
        Raised by `build_parts` and `trunk_devices`.
    """
    trunk = build_parts(config, ("trunk",), device_map=trunk_devices(config)).trunk
    assert trunk is not None
    return trunk


def initial_arrays(config: LanguageConfig) -> ArrayRecord:
    """Return the initial weights of heads and tails if they are averaged, else nothing.

    Without averaging, every client builds them from the seed.
    """
    return ArrayRecord(initial_segments(config) if config.averages else {})


def make_strategy(config: LanguageConfig, trunk: Trunk, run: Run | None) -> UShapeStrategy:
    """Make the configured strategy.

    Raises
    ------
    ValueError
        Raised by the strategy.
    LinkError
        If the stream's address or certificates are wrong.
    """
    return USHAPE_STRATEGIES[config.strategy](
        trunk,
        aggregator=None if config.aggregator == "auto" else make_aggregator(config.aggregator),
        schedule=config.schedule(),
        device=PLACED if is_placed(trunk) else config.device,
        max_length=config.width,
        min_nodes=config.min_nodes or 1,
        evaluation=config.evaluation_kind,
        **config.training_options(run),
    )
