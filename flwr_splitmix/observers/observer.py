"""What an observer is: something that watches a run as the server sees it."""

from __future__ import annotations

from flwr_splitmix.events import Exchange, RoundDone, StepDone


class Observer:
    """Base class; override what is of interest. Observers never change what they see."""

    def on_exchange(self, event: Exchange) -> None:
        """See one payload that went to, or came from, one client."""

    def on_step(self, event: StepDone) -> None:
        """See one finished step."""

    def on_round(self, event: RoundDone) -> None:
        """See the end of a round."""
