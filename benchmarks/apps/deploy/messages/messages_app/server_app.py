"""The ServerApp: times steps of two messages a client."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from benchmarks.apps.steps.step_app.lenet import lenet
from benchmarks.apps.steps.step_app.messages import MessagesServer

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Take the steps, and write the milliseconds of each."""
    step = MessagesServer(grid, lenet())
    milliseconds = []
    for _ in range(int(context.run_config["steps"])):
        began = time.perf_counter()
        step()
        milliseconds.append(1000 * (time.perf_counter() - began))
    Path(str(context.run_config["out"])).write_text(json.dumps({"message_ms": milliseconds}))
