"""The run configuration of apps/language, and a run of it over a LocalLink."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Result

from flwr_splitmix import Run
from flwr_splitmix.apps.language.client import client_fn
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.apps.language.server import build_trunk, initial_arrays, make_strategy
from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.runs import Row
from flwr_splitmix.server.nodes.participants import size_of_draw
from flwr_splitmix.strategies import UShapeStrategy
from tests.apps.app_config import APPS, app_run_config
from tests.apps.vision_app import context

APP = APPS / "language"

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
"""Real data beside the repository, if they are there."""

TINY: dict[str, Any] = {
    "small_width": 16,
    "small_layers": 3,
    "small_vocabulary": 300,
    "num_server_rounds": 1,
    "steps_per_round": 1,
    "batch_size": 4,
    "warmup_epochs": 0.0,
    "samples_per_client": 8,
    "test_samples_per_client": 6,
    "public_samples": 8,
    "calibration_epochs": 1,
    "secret_tokens": 2,
    "device": "cpu",
    "client_device": "cpu",
}
"""One step of a model with a layer in each part."""


def run_config(**overrides: Any) -> dict[str, Any]:
    """Return the app's run configuration with some keys changed (`_` for `-`)."""
    return app_run_config("language", overrides)


def read(**values: Any) -> LanguageConfig:
    """Return the app's configuration with some keys changed."""
    return LanguageConfig.read(run_config(**values))


def client(index: int, n: int, **values: Any) -> UShapeClient:
    """Return what the app's client_fn makes of a node."""
    return client_fn(context(index, n, run_config(**values)))


@dataclass(frozen=True)
class Fitted:
    """The results of a run."""

    strategy: UShapeStrategy
    clients: list[UShapeClient]
    rows: list[Row]
    result: Result


def fit(run_dir: Path, n: int = 2, **values: Any) -> Fitted:
    """Do a run of `n` clients: one round of one step, unless `values` say otherwise."""
    values = {**TINY, **values}
    config = read(**values)
    clients = [client(i, n, **values) for i in range(n)]
    run = Run.create(run_config(**values), name="test", home=run_dir)
    strategy = make_strategy(config, build_trunk(config), run)
    result = strategy.fit(clients, config.num_server_rounds, initial_arrays=initial_arrays(config))
    drawn = size_of_draw(n, strategy.min_nodes, config.fraction_train)
    assert {(row["clients_alive"], row["clients_failed"]) for row in run.rows} == {(drawn, 0)}
    return Fitted(strategy, clients, run.rows, result)
