"""A run of the app in this process, over a LocalLink: no Flower, no Ray."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from flwr_splitmix import Run
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import client_images
from flwr_splitmix.apps.vision.first_round import in_a_round
from flwr_splitmix.apps.vision.model import segments_of
from flwr_splitmix.apps.vision.server import make_strategy
from flwr_splitmix.clients import SplitClient
from flwr_splitmix.runs import Row
from flwr_splitmix.segments import SplitModel
from flwr_splitmix.strategies import SplitStrategy
from tests.apps.vision_app import run_config, split_client

CLIENTS = 3
ONE_STEP: dict[str, Any] = {
    "num_server_rounds": 1,
    "steps_per_round": 1,
    "warmup_epochs": 0.0,
    "samples_per_client": 8,
    "batch_size": 4,
    "depth": 2,
    "device": "cpu",
    "client_device": "cpu",
    "evaluation": "none",
}


@dataclass(frozen=True)
class Fitted:
    """The results of a run; `lower` is the server's segment in the end."""

    strategy: SplitStrategy
    clients: list[SplitClient]
    rows: list[Row]
    segments: SplitModel
    lower: dict[str, Tensor]

    @property
    def row(self) -> Row:
        """The only round."""
        (row,) = self.rows
        return row

    @property
    def last(self) -> Row:
        """The last round."""
        return self.rows[-1]


def read(**values: Any) -> VisionConfig:
    """Return the app's configuration with some keys changed (`_` for `-`)."""
    return VisionConfig.read(run_config(**values))


def needed(strategy: str) -> dict[str, Any]:
    """Return the keys without which a strategy is refused."""
    return {"sigma_s": 0.5, "sigma_y": 0.25} if strategy.startswith("DP") else {}


def fit(run_dir: Path, n: int = CLIENTS, **values: Any) -> Fitted:
    """Do a run of `n` clients: one round of one step, unless `values` say otherwise."""
    config, values = read(**{**ONE_STEP, **values}), run_config(**{**ONE_STEP, **values})
    segments = segments_of(config)
    clients = [split_client(i, n, values) for i in range(n)]
    labels = [torch.tensor(client_images(config, i, n)[0].labels) for i in range(n)]
    run = Run.create(values, name="test", home=run_dir)
    # The app's process ends with its run; here the segments are kept for the next test.
    strategy = make_strategy(config, copy.deepcopy(segments.upper), run, labels)
    initial = ArrayRecord(segments.lower.state_dict())
    result = strategy.fit(clients, config.num_server_rounds, initial_arrays=initial)
    drawn = in_a_round(strategy, n)
    assert {(row["clients_alive"], row["clients_failed"]) for row in run.rows} == {(drawn, 0)}
    lower = {name: torch.tensor(array.numpy()) for name, array in result.arrays.items()}
    return Fitted(strategy, clients, run.rows, segments, lower)
