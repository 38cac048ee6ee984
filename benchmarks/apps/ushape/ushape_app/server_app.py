"""The ServerApp: times steps over a RayLink in turn with steps of the whole model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from flwr_splitmix import RayLink

from .models import SIZES, Unsplit, build, plain_client
from .stopwatch import Stopwatch, make_strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Measure, and write the figures to the file that the run configuration names."""
    config = context.run_config
    threads = int(config["threads"])
    torch.set_num_threads(threads)
    size = SIZES[str(config["size"])]
    parts = build(size)
    watch = Stopwatch(Unsplit(parts, size))
    _, trunk, _ = parts.all_here()
    # The client and the trunk never compute at the same time: each may have all threads.
    link = RayLink(num_hosts=1, host_threads=threads)
    strategy = make_strategy(trunk, watch, int(config["repeats"]), link)
    strategy.start(grid, ArrayRecord(plain_client(parts, size).weights()), num_rounds=1)
    ray_ms, unsplit_ms = watch.pairs
    figures = {"ray_ms": ray_ms, "unsplit_in_run_ms": unsplit_ms}
    Path(str(config["out"])).write_text(json.dumps(figures))
