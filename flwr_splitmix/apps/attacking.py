"""What attacks on the U shape need of a run's files: its clients, and the parts of its data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from flwr_splitmix.attacks.trace import DiskTrace
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.checkpoints import Checkpoint
from flwr_splitmix.runs.recording import trace_dir
from flwr_splitmix.words import counted


@dataclass(frozen=True)
class Division:
    """Into how many parts the data of a run's clients were divided.

    Parameters
    ----------
    finished
        The clients that finished a round, sorted; at least one.
    said
        By client, the number of parts that its node reported; 0 if it changed during the run.
    """

    finished: list[int]
    said: Mapping[int, int]

    def parts_of(self, client: int) -> int:
        """Return the number of a client's node; if it said not one number, the fewest that fit."""
        return self.said.get(client) or max(*self.finished, client) + 1

    def remark(self, clients: Collection[int], noun: str) -> str:
        """Return what to say if the node of one of these clients said not one number; or "".

        Parameters
        ----------
        noun
            What the data are: "images", "texts".
        """
        unsure = [client for client in clients if not self.said.get(client)]
        if not unsure:
            return ""
        parts = counted(max(map(self.parts_of, unsure)), "client")
        changed = any(client in self.said for client in unsure)
        return (
            f"the {noun} are taken as divided among {parts}, the fewest that fit those that "
            f"finished a round: the run's nodes {'changed' if changed else 'did not say'} the "
            f"number (num-partitions); if it was larger, or a node has {noun} of its own, {noun} "
            "are taken for a client's that are not"
        )


def division_of(run: Run, kept: Checkpoint) -> Division:
    """Return how a run's data were divided, as its checkpoint says.

    Raises
    ------
    RunError
        If no client finished a round.
    """
    finished = sorted(int(client) for client in kept.meta["trained"])
    if not finished:
        raise RunError(f"run {run.id}: no client finished a round; there is nothing to attack")
    said = kept.meta.get("partitions", {})
    return Division(finished, {int(client): int(parts) for client, parts in said.items()})


def recorded_trace(run: Run) -> DiskTrace | None:
    """Return what was recorded of a run in the U shape; None if it was not recorded."""
    trace = DiskTrace(trace_dir(run))
    return trace if trace.places else None
