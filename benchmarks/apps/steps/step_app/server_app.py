"""The ServerApp: times the steps of PSL over a RayLink, in turn with what they are compared to."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from flwr_splitmix import RayLink

from .lenet import CLIENTS, Split, lenet
from .messages import MessagesServer
from .models import NearlyEmpty, Unsplit, vit
from .stopwatch import WARM_UP, Stopwatch, WatchedPSL

app = ServerApp()

CHEAP = 5
"""So many steps of a few milliseconds for each one that takes seconds."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Measure, and write the figures to the file that the run configuration names."""
    repeats = int(context.run_config["repeats"])
    if context.run_config["model"] == "vit":
        figures = time_vit(grid, vit(int(context.run_config["depth"])), repeats)
    else:
        figures = time_lenet(grid, lenet(), repeats)
    figures["server_threads"] = torch.get_num_threads()
    Path(str(context.run_config["out"])).write_text(json.dumps(figures))


def time_vit(grid: Grid, model: Split, repeats: int) -> dict[str, Any]:
    """Split steps in turn with unsplit ones; then steps with a nearly empty upper segment."""
    watch = Stopwatch(Unsplit(model))
    run(grid, model.lower, model.upper, watch, model, repeats)
    empty = Stopwatch()
    strategy = run(grid, model.lower, NearlyEmpty(), empty, model, CHEAP * repeats)
    return {
        "ray_ms": watch.steps,
        "unsplit_in_run_ms": watch.others,
        "ray_overhead_ms": strategy.overhead_ms,
        "nearly_empty_step_ms": empty.steps,
    }


def time_lenet(grid: Grid, model: Split, repeats: int) -> dict[str, Any]:
    """Split steps over the link in turn with split steps by Flower messages."""
    messages = MessagesServer(grid, copy.deepcopy(model))
    watch = Stopwatch(messages, every=CHEAP)
    run(grid, model.lower, model.upper, watch, model, CHEAP * repeats)
    return {"ray_small_ms": watch.steps, "messages_ms": watch.others}


def run(
    grid: Grid, lower: nn.Module, upper: nn.Module, watch: Stopwatch, model: Split, repeats: int
) -> WatchedPSL:
    """Run one round of PSL with a joint update and so many measured steps."""
    strategy = WatchedPSL(
        upper,
        watch,
        num_classes=10,
        server_update="sum",
        optimizer=model.optimizer,
        device="cpu",
        steps_per_round=repeats + WARM_UP + 1,
        min_nodes=CLIENTS,
        link=RayLink(),
    )
    strategy.start(grid, ArrayRecord(lower.state_dict()), num_rounds=1)
    return strategy
