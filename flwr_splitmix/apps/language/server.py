"""The ServerApp: from the run configuration to a trunk and a strategy, and the run."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as flower

from flwr_splitmix import Run
from flwr_splitmix.segments.language import Trunk
from flwr_splitmix.strategies import USHAPE_STRATEGIES, UShapeStrategy

from language_config import LanguageConfig
from language_model import build_parts, initial_segments

app = ServerApp()

BALANCED = "balanced"
"""The device that is all accelerators together."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train one run, or continue one."""
    config, resumed = LanguageConfig.of_run(context.run_config)
    if config.server_threads:
        torch.set_num_threads(config.server_threads)
    # What can be refused is refused before the run has a directory.
    trunk = build_trunk(config)
    make_strategy(config, trunk, None)
    initial = initial_arrays(config)
    run = resumed or Run.create(context.run_config, name=config.strategy.lower(), home=config.home)
    make_strategy(config, trunk, run).start(
        grid, initial_arrays=initial, num_rounds=config.num_server_rounds
    )


def build_trunk(config: LanguageConfig) -> Trunk:
    """Build the server's part of the model, on its devices if there are several."""
    placed = BALANCED if config.device == BALANCED else None
    trunk = build_parts(config, ("trunk",), device_map=placed).trunk
    assert trunk is not None
    return trunk


def initial_arrays(config: LanguageConfig) -> ArrayRecord:
    """Return the heads' and tails' first weights, if they are averaged.

    Otherwise nothing need travel: every client builds them under the seed.
    """
    return ArrayRecord(initial_segments(config) if config.averages else {})


def make_strategy(config: LanguageConfig, trunk: Trunk, run: Run | None) -> UShapeStrategy:
    """Make the strategy that the configuration names."""
    aggregator = None
    if config.aggregator != "auto":
        kind: type[flower.FedAvg] = getattr(flower, config.aggregator)
        aggregator = kind(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    return USHAPE_STRATEGIES[config.strategy](
        trunk,
        aggregator=aggregator,
        optimizer=config.optimizer(),
        schedule=config.schedule(),
        device="placed" if config.device == BALANCED else config.device,
        precision=config.precision,
        max_length=config.width,
        steps_per_round=config.steps_per_round or None,
        epochs_per_round=config.epochs_per_round,
        fraction_train=config.fraction_train,
        min_nodes=config.min_nodes or 1,
        evaluation=config.evaluation_kind,
        evaluate_every=config.evaluate_every,
        checkpoint_every=config.checkpoint_every,
        seed=config.seed,
        run=run,
        link=config.make_link(run),
    )
