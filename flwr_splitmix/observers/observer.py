"""What an observer is: something that watches a run as the server sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr_splitmix.observers.events import Exchange, RoundBegun, RoundDone, StepDone


class Observer:
    """Base class; override what is of interest. Observers never change what they see."""

    def on_begin(self, event: RoundBegun) -> None:
        """See who attached to a round."""

    def on_exchange(self, event: Exchange) -> None:
        """See one payload that went to, or came from, one client."""

    def on_step(self, event: StepDone) -> None:
        """See one finished step."""

    def on_round(self, event: RoundDone) -> None:
        """See the end of a round."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it, as values that JSON has; nothing by default."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
