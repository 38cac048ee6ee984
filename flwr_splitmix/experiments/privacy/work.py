"""The doing of a task: the training of a victim, the search for its noise, an attack with scores.

It is loaded once for all processes of a matrix, so it imports what they need.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Literal

import torch

from flwr_splitmix.attacks.attacked import Attacked, Case
from flwr_splitmix.attacks.base import Attack, Budget, Guess, NotApplicable
from flwr_splitmix.attacks.bench import Victim, train_victim
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.device import pick_device
from flwr_splitmix.experiments.privacy.cells import MatrixCell, Place
from flwr_splitmix.experiments.privacy.noise import find_noise, resolved
from flwr_splitmix.experiments.privacy.rows import EQUAL, Row, row_named
from flwr_splitmix.experiments.privacy.tasks import Task
from flwr_splitmix.storage import write_json

Outcome = Literal["done", "not applicable"]


def do(task: Task, place: Place) -> tuple[Outcome, str]:
    """Do a task and keep its result; returns what became of it, in words too."""
    if task.kind == "noise":
        return "done", _search(task.row, place)
    if task.kind == "victim":
        return "done", _train(task.row, task.seed, place)
    assert task.cell is not None
    return attack_cell(task.cell, place)


def victim_of(row: Row, seed: int, place: Place) -> Victim:
    """Return the system that a row stands for."""
    size, own = place.size, resolved(row, place)
    options: dict[str, Any] = {k: v for k, v in own.options if k not in _NOISE}
    if noise := {k: v for k, v in own.options if k in _NOISE}:
        options["noise"] = GaussianNoise.from_plain(noise)
    return Victim(
        method=own.method,
        options=options,
        model_options={"patch_size": size.patch, "depth": size.depth + own.frozen_edge},
        dataset=place.source,
        image_size=size.image_size,
        clients=size.clients,
        samples=size.samples,
        rounds=size.epochs,
        batch_size=size.batch,
        defence=own.defence,
        test_images=size.test,
        seed=seed,
    )
