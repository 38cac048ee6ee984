"""The parts of a run's files that attacks need: results; in the U shape clients and data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.attacks.recording.packing import UShapeStep
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.attack_recording import trace_dir
from flwr_splitmix.runs.checkpoints import Checkpoint
from flwr_splitmix.words import counted, listed


@dataclass(frozen=True)
class Division:
    """Into how many parts the data of a run's clients were divided.

    Parameters
    ----------
    finished
        The clients that finished a round, sorted; at least one.
    reported
        By client, the number of parts that its node reported; 0 if it changed during the run.
    """

    finished: list[int]
    reported: Mapping[int, int]

    def parts_of(self, client: int) -> int:
        """Return the number that a client's node reported; otherwise the least that fits."""
        return self.reported.get(client) or max(*self.finished, client) + 1

    def chosen(self, run: Run, client: int | None) -> int:
        """Return the client that is attacked: the named one, or None for the first.

        Raises
        ------
        RunError
            If it finished no round, so that it trained on nothing.
        """
        if client is None:
            return self.finished[0]
        if client not in self.finished:
            raise RunError(
                f"run {run.id}: client {client} finished no round; --client names the client whose "
                f"data are attacked: {listed(self.finished)}"
            )
        return client

    def remark(self, clients: Collection[int], noun: str) -> str:
        """Return a warning if the node of one of these clients reported no single number; else "".

        Parameters
        ----------
        noun
            What the data are: "images", "texts".
        """
        unsure = [client for client in clients if not self.reported.get(client)]
        if not unsure:
            return ""
        parts = counted(max(map(self.parts_of, unsure)), "client")
        changed = any(client in self.reported for client in unsure)
        return (
            f"the {noun} are taken as divided among {parts}, the fewest that fit those that "
            f"finished a round: the run's nodes {'changed' if changed else 'did not say'} the "
            f"number (num-partitions); if it was larger, or a node has {noun} of its own, {noun} "
            "are taken for a client's that are not"
        )


def division_of(run: Run, checkpoint: Checkpoint) -> Division:
    """Return how a run's data were divided, as its checkpoint says.

    Raises
    ------
    RunError
        If no client finished a round.
    """
    finished = sorted(int(client) for client in checkpoint.meta["trained"])
    if not finished:
        raise RunError(f"run {run.id}: no client finished a round; there is nothing to attack")
    partitions = checkpoint.meta.get("partitions", {})
    return Division(finished, {int(client): int(parts) for client, parts in partitions.items()})


def results_of(run: Run, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the facts about a run beside the findings of attacks, for `Attacked.summary`."""
    return {
        "accuracy": (run.summary or {}).get("top1"),
        "rounds": checkpoint.round,
        "uplink_bytes": sum(row["uplink_bytes"] or 0 for row in run.rows),
    }


def recorded_trace(
    run: Run, clients: Collection[int], noun: str, sent_by: Callable[[UShapeStep], Collection[int]]
) -> tuple[DiskTrace | None, str]:
    """Return what was recorded of a run in the U shape, and what to say if it cannot serve.

    Parameters
    ----------
    clients
        Those that are attacked.
    noun
        What the data are: "images", "texts".
    sent_by
        The clients whose part of a step has what an attack needs.

    Returns
    -------
    None if nothing was recorded, or no step that can be read has one of the clients; the remark
    is "" in all other cases than the last.
    """
    trace = DiskTrace(trace_dir(run))
    if not trace.places:
        return None, ""
    for step in trace.backwards():
        if isinstance(step, UShapeStep) and not set(clients).isdisjoint(sent_by(step)):
            return trace, ""
    whose = f"client {min(clients)}" if len(clients) == 1 else "the clients whose data are here"
    return None, (
        f"the recording is not used: of its {counted(len(trace.places), 'step')}, none that can be "
        f"read has what {whose} sent; {noun} are released once more"
    )
