"""The base class of observers, which watch a run as the server sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr_splitmix.events import (
    Exchange,
    RoundBegun,
    RoundDone,
    RunEnded,
    RunStarted,
    StepDone,
)


class Observer:
    """Base class; override what is of interest. Observers never change what they see.

    Attributes
    ----------
    stop
        Set it to a reason to have the run end after the round in progress, as an exhausted privacy
        budget does: what is finished is kept, and the run can be resumed. Set within a round it
        has that round evaluated as the last one; set in `on_round` it comes too late for that.
    """

    stop: str = ""

    def on_start(self, event: RunStarted) -> None:
        """Observe that the run begins, or continues from a checkpoint."""

    def on_begin(self, event: RoundBegun) -> None:
        """See who attached to a round."""

    def on_exchange(self, event: Exchange) -> None:
        """See one payload that went to, or came from, one client."""

    def on_step(self, event: StepDone) -> None:
        """See one finished step."""

    def on_round(self, event: RoundDone) -> None:
        """See the end of a round."""

    def on_end(self, event: RunEnded) -> None:
        """See that the run is over, also if it failed."""

    def facts(self) -> Mapping[str, Any]:
        """Return what it adds to a run's summary, as values that JSON has; nothing by default."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it, as values that JSON has; nothing by default."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""


class Audience:
    """All observers of a run: what one is told, every one is told, in their order.

    Parameters
    ----------
    observers
        Looked at anew with each event, so that the list may still grow.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers

    @property
    def stop(self) -> str:
        """The first reason that an observer gives to end the run; "" if none does."""
        return next((observer.stop for observer in self.observers if observer.stop), "")

    def facts(self) -> dict[str, Any]:
        """Return what all of them add to a run's summary."""
        return {name: fact for each in self.observers for name, fact in each.facts().items()}

    def on_start(self, event: RunStarted) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.on_start(event)

    def on_begin(self, event: RoundBegun) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.on_begin(event)

    def on_exchange(self, event: Exchange) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.on_exchange(event)

    def on_step(self, event: StepDone) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.on_step(event)

    def on_round(self, event: RoundDone) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.on_round(event)

    def on_end(self, event: RunEnded) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.on_end(event)
