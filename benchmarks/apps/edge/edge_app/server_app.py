"""The ServerApp: PSL over shaped lines, with the seconds of its steps and of their parts."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from benchmarks.apps.steps.step_app.lenet import CLASSES
from benchmarks.apps.steps.step_app.models import vit
from flwr_splitmix import StreamLink
from flwr_splitmix.events import Exchange, RoundDone, StepDone
from flwr_splitmix.observers import Observer
from flwr_splitmix.server.segments.upper import TrainedUpper
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.strategies import PSL

WARM_UP = 2
"""Steps that are taken but not counted; the first brings no gradient."""

CHOICE_STEPS = 2
"""Further ones, where the first steps choose the number of parts."""

app = ServerApp()


class Stopwatch(Observer):
    """Notes when each step has been learned from, and the bytes of each client's exchanges.

    Attributes
    ----------
    ended
        Seconds of a clock at the end of each step.
    nbytes
        By direction and client, bytes of tensors of all exchanges.
    parts
        Of a batch of the newest step.
    """

    def __init__(self) -> None:
        self.ended: list[float] = []
        self.nbytes: dict[str, dict[int, int]] = {w: defaultdict(int) for w in ("up", "down")}
        self.parts = 1
        self.row: dict[str, Any] = {}

    def on_exchange(self, event: Exchange) -> None:
        """Count the bytes, and note into how many parts a batch is cut."""
        self.nbytes[event.direction][event.client] += event.nbytes
        self.parts = event.payload.get("parts", self.parts)

    def on_step(self, event: StepDone) -> None:
        """Note the time."""
        self.ended.append(time.perf_counter())

    def on_round(self, event: RoundDone) -> None:
        """Keep the round's row."""
        self.row = dict(event.row)


def timed(upper: TrainedUpper) -> list[float]:
    """Have a segment note the seconds of each of its updates in the list that is returned."""
    seconds: list[float] = []

    def timing(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            result = method(*arguments, **named)
            seconds.append(time.perf_counter() - began)
            return result

        return run

    for name in ("learn", "learn_part", "finish_parts"):
        setattr(upper, name, timing(getattr(upper, name)))
    return seconds


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Measure, and write the figures."""
    config: dict[str, Any] = dict(context.run_config)
    watch = Stopwatch()
    model, nodes = vit(int(config["depth"])), int(config["nodes"])
    pace = Pace(config["straggler"], group_order=config["group-order"])
    warm_up = WARM_UP + (CHOICE_STEPS if config["micro-batches"] == "auto" else 0)
    strategy = PSL(
        model.upper,
        num_classes=CLASSES,
        server_update=config["server-update"],
        optimizer=model.optimizer,
        device="cpu",
        steps_per_round=warm_up + int(config["steps"]),
        min_nodes=1 if pace.skips else nodes,
        pace=pace,
        micro_batches=config["micro-batches"],
        observers=[watch],
        link=StreamLink(
            certificate=config["ssl-certfile"],
            key=config["ssl-keyfile"],
            ca=config["ssl-ca-certfile"],
            address=str(config["link-address"]),
            attach_timeout=300.0,
        ),
    )
    server_s = timed(strategy.upper)
    strategy.start(grid, ArrayRecord(model.lower.state_dict()), num_rounds=1)
    counted = watch.ended[warm_up - 1 :]
    computed = {
        client: json.loads((Path(str(config["out"])) / f"computed-{client}.json").read_text())
        for client in range(nodes)
    }
    figures = {
        "step_s": [after - before for before, after in pairwise(counted)],
        # Sequential updates in order of arrival, and batches in parts, are several calls a step.
        "server_s": sum(server_s) / len(watch.ended),
        # The first brings no gradient.
        "client_s": {c: fmean(s[1:] or s) for c, s in computed.items()},
        "nbytes": watch.nbytes,
        "uploads": {client: len(seconds) for client, seconds in computed.items()},
        "parts": watch.parts,
        "row": {name: watch.row.get(name) for name in ("clients_alive", "late_by_client")},
    }
    (Path(str(config["out"])) / "figures.json").write_text(json.dumps(figures))
