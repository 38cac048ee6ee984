"""An observer that keeps the events of a run."""

from __future__ import annotations

from typing import Any

from flwr_splitmix.events import Exchange, RoundDone, StepDone
from flwr_splitmix.observers import Observer


class KeptEvents(Observer):
    """Keeps a run's exchanges, steps and rounds, in order."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.steps: list[Any] = []
        self.rounds: list[RoundDone] = []

    def on_exchange(self, event: Exchange) -> None:
        self.exchanges.append(event)

    def on_step(self, event: StepDone) -> None:
        self.steps.append(event)

    def on_round(self, event: RoundDone) -> None:
        self.rounds.append(event)
