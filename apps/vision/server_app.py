"""The ServerApp: from the run configuration to a strategy, and the run."""

from __future__ import annotations

import copy
from typing import Any

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as flower

from flwr_splitmix import RayLink, Run
from flwr_splitmix.strategies import STRATEGIES, SplitStrategy, central_evaluation

from vision_config import AVERAGING, MIXING, VisionConfig

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train one run, or continue one."""
    config = VisionConfig.read(context.run_config)
    home = config.run_dir or None
    resumed = Run.open(config.resume, home=home) if config.resume else None
    if resumed is not None:
        config = VisionConfig.read(resumed.config)
    images, segments = config.images(), config.segments()
    run = resumed or Run.create(context.run_config, name=config.strategy.lower(), home=home)
    if config.server_threads:
        torch.set_num_threads(config.server_threads)
    strategy = make_strategy(config, segments.upper, run)
    evaluate_fn = None
    if config.evaluation_kind == "central":
        evaluate_fn = central_evaluation(strategy.upper, copy.deepcopy(segments.lower), images.test)
    strategy.start(
        grid,
        initial_arrays=ArrayRecord(segments.lower.state_dict()),
        num_rounds=config.num_server_rounds,
        evaluate_fn=evaluate_fn,
    )


def make_strategy(config: VisionConfig, upper: torch.nn.Module, run: Run) -> SplitStrategy:
    """Make the strategy that the configuration names."""
    options: dict[str, Any] = {}
    if config.strategy in MIXING:
        options |= {
            "k": config.k,
            "alpha": config.mixing_alpha,
            "rounding": config.rounding,
            "min_patches": config.min_patches,
            "gradient": config.gradient,
            "regroup": config.regroup,
            "k_times": config.k_times,
            "mask_per_sample": config.mask_per_sample,
        }
    if config.strategy in AVERAGING:
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
        link=RayLink(
            num_hosts=config.num_hosts,
            host_gpus=config.host_gpus,
            host_threads=config.host_threads,
            state_dir=run.clients_dir,
            attach_timeout=config.attach_timeout,
            step_timeout=config.step_timeout,
        ),
    )
