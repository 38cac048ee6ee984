"""The ServerApp: first every client trains once, then rounds of ten clients are measured."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from flwr_splitmix import RayLink, Run
from flwr_splitmix.events import RoundDone, StepDone
from flwr_splitmix.links import Clients
from flwr_splitmix.observers import Observer
from flwr_splitmix.strategies import PSL

from .client_app import model

app = ServerApp()

TAKING_PART = 10
CHUNK = 50
"""So many clients train in one round of the warm-up, one step each."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds and write what was measured."""
    config = context.run_config
    out = Path(str(config["out"]))
    nodes = len(list(grid.get_node_ids()))
    warm_up = math.ceil(nodes / CHUNK)
    timed = warm_up + int(config["timed-rounds"])
    watch = Watch(out / "phase", warm_up, timed)
    strategy = WarmedPSL(
        model().upper,
        watch,
        warm_up,
        int(config["steps"]),
        server_update="sum",
        device="cpu",
        fraction_train=TAKING_PART / nodes,
        min_nodes=min(TAKING_PART, nodes),
        checkpoint_every=10**6,
        run=(run := Run.create({}, name="scale", home=out)),
        link=RayLink(state_dir=run.clients_dir),
    )
    lower = ArrayRecord(model().lower.state_dict())
    try:
        strategy.start(grid, lower, num_rounds=timed + int(config["weighed-rounds"]))
    finally:
        (out / "phase").write_text("over")
    figures = {
        "clients": nodes,
        "clients_trained": len(strategy.last_trained_round),
        "step_ms": watch.steps,
        "outside_steps_s": watch.outside,
    }
    (out / "figures.json").write_text(json.dumps(figures))


class Watch(Observer):
    """Times the steps of the timed rounds, and these rounds outside their steps.

    Parameters
    ----------
    phase
        The file that says "warm-up", "timed", "weighed" or, at last, "over".
    warm_up, timed
        The last round of each of these phases.
    """

    def __init__(self, phase: Path, warm_up: int, timed: int) -> None:
        self.phase = phase
        self.last = {"warm-up": warm_up, "timed": timed}
        self.steps: list[float] = []
        """Milliseconds of each, from the end of the one before it."""
        self.outside: list[float] = []
        """Seconds from the end of a round to the end of the next, less those of `train_round`."""
        self.training = 0.0
        self._round_ended = self._step_ended = 0.0
        phase.write_text("warm-up")

    def _is_timed(self, server_round: int) -> bool:
        return self.last["warm-up"] < server_round <= self.last["timed"]

    def on_step(self, event: StepDone) -> None:
        """Time every step but the first of a round, which has no backward."""
        now = time.perf_counter()
        if self._is_timed(event.server_round) and event.number:
            self.steps.append(1000 * (now - self._step_ended))
        self._step_ended = now

    def on_round(self, event: RoundDone) -> None:
        """Time the round and say which phase begins."""
        now = time.perf_counter()
        if self._is_timed(event.server_round):
            self.outside.append(now - self._round_ended - self.training)
        self._round_ended = now
        if event.server_round in self.last.values():
            self.phase.write_text(
                "timed" if event.server_round == self.last["warm-up"] else "weighed"
            )


class WarmedPSL(PSL):
    """PSL whose first rounds go through all clients, `CHUNK` at a time."""

    def __init__(
        self, upper: nn.Module, watch: Watch, warm_up: int, steps: int, **options: Any
    ) -> None:
        super().__init__(upper, **options, observers=[watch])
        self.watch = watch
        self.warm_up = warm_up
        self.steps = steps

    def _sample(self, grid: Grid | None, server_round: int, purpose: str) -> dict[int, int]:
        if server_round > self.warm_up:
            return super()._sample(grid, server_round, purpose)
        directory = sorted(self.run_state.link.directory(grid, self.min_nodes).items())
        return dict(directory[(server_round - 1) * CHUNK : server_round * CHUNK])

    def agree(self, clients: Clients) -> int:
        """Take one step in a round of the warm-up."""
        self.steps_per_round = 1 if clients.server_round <= self.warm_up else self.steps
        return super().agree(clients)

    def train_round(self, clients: Clients, server_round: int) -> int:
        """Train, and note how long it took."""
        began = time.perf_counter()
        steps = super().train_round(clients, server_round)
        self.watch.training = time.perf_counter() - began
        return steps
