"""Which clients an observer hears of that was absent from rounds."""

from __future__ import annotations

from typing import Any

import pytest

from flwr_splitmix.events import RoundsMissed
from flwr_splitmix.observers import Observer
from flwr_splitmix.observers.observer import Audience
from flwr_splitmix.runs.begun import Begun
from flwr_splitmix.runs.checkpoints import Checkpoint
from flwr_splitmix.server.record.checkpointing import notify_of_missed


class Absent(Observer):
    """Was away after round 2, and keeps what it is told of that."""

    event: RoundsMissed | None = None

    def on_missed(self, event: RoundsMissed) -> None:
        """Keep it."""
        self.event = event


def missed_clients(trained: dict[str, int], begun: list[Begun], unfinished: set[int]) -> Any:
    entry = {"kind": "Absent", "state": {"some": 1}, "round": 2}
    meta = {"trained": trained, "observers": [entry]}
    observer = Absent()
    notify_of_missed(Checkpoint(4, {}, meta), Audience([observer]), begun, unfinished)
    return None if observer.event is None else observer.event.clients


@pytest.mark.parametrize(
    ("begun", "unfinished", "clients"),
    [
        ([], set(), None),
        ([], {5}, {5}),  # of which it is not known when
        ([Begun(3, [6], evaluates=True)], set(), {6}),  # sent test data, and finished nothing
        ([Begun(4, [6, 7], evaluates=False)], {5}, {5, 6, 7}),
        ([Begun(2, [6], evaluates=True), Begun(5, [7], evaluates=False)], set(), None),
    ],
)
def test_clients_that_finished_nothing_meanwhile_are_told_too(
    begun: list[Begun], unfinished: set[int], clients: set[int] | None
) -> None:
    """What they sent in these rounds has cost them an epsilon that no ledger of theirs has."""
    assert missed_clients({"0": 2, "1": 1}, begun, unfinished) == clients
    assert missed_clients({"0": 2, "1": 4}, begun, unfinished) == {1, *(clients or ())}
