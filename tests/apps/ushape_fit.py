"""A run of apps/vision in the U shape in this process, over a LocalLink."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Result

from flwr_splitmix import Run, UShapeClient
from flwr_splitmix.apps.vision import ushape
from flwr_splitmix.apps.vision.client import client_fn
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.apps.vision.inputs import record_inputs
from flwr_splitmix.runs import Row
from flwr_splitmix.strategies import UShapeStrategy
from tests.apps.vision_app import context, run_config

ONE_STEP: dict[str, Any] = {
    "strategy": "USplitFL",
    "num_server_rounds": 1,
    "steps_per_round": 1,
    "warmup_epochs": 0.0,
    "samples_per_client": 8,
    "batch_size": 4,
    "depth": 3,
    "device": "cpu",
    "client_device": "cpu",
    "evaluation": "none",
}
"""One step of a ViT-Tiny with a block in each part, and no test images."""


@dataclass(frozen=True)
class Fitted:
    """The results of a run."""

    config: VisionConfig
    strategy: UShapeStrategy
    clients: list[UShapeClient]
    rows: list[Row]
    result: Result
    run: Run


def values_of(**values: Any) -> dict[str, Any]:
    """Return the run configuration with some keys changed (`_` for `-`)."""
    return run_config(**{**ONE_STEP, **values})


def read(**values: Any) -> VisionConfig:
    """Return the checked configuration."""
    return VisionConfig.read(values_of(**values))


def fit(run_dir: Path, n: int = 2, **values: Any) -> Fitted:
    """Do a run of `n` clients: one round of one step, unless `values` say otherwise."""
    config, plain = read(**values), values_of(**values)
    run = Run.create(plain, name="test", home=run_dir)
    record_inputs(run, images_of(config))
    return continued(run, n, **values)


def continued(run: Run, n: int = 2, **values: Any) -> Fitted:
    """Do the rounds of a run that are left."""
    config, plain = read(**values), values_of(**values)
    clients = []
    for index in range(n):
        client = client_fn(context(index, n, plain))
        assert isinstance(client, UShapeClient)
        clients.append(client)
    strategy = ushape.make_strategy(config, run)
    evaluate_fn = None
    if config.evaluation_kind == "central":
        evaluate_fn = ushape.central_evaluation(config, strategy)
    result = strategy.fit(
        clients,
        config.num_server_rounds,
        initial_arrays=ushape.initial_arrays(config),
        evaluate_fn=evaluate_fn,
    )
    return Fitted(config, strategy, clients, run.rows, result, run)
