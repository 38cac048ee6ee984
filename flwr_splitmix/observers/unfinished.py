"""What clients began and did not finish: what they sent then, they may send again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flwr_splitmix.events import RoundBegun, RoundDone
from flwr_splitmix.observers.observer import Observer
from flwr_splitmix.runs.begun import Begun
from flwr_splitmix.storage import text_keys, whole_keys


class UnfinishedRounds(Observer):
    """Counts, for each client, how often it may have sent before what it is asked for next.

    A client that is lost in a round continues from its last state, which may lack what it charged
    itself in that round. After an interruption all clients continue from their states of the
    newest checkpoint: the first rounds of a client from there repeat those that it had begun since
    the checkpoint, whichever these were. One that followed a lost one may have repeated it, or gone
    on where the client was lost; both are counted.
    """

    def __init__(self) -> None:
        self._lost: Counter[int] = Counter()
        self._repeats: dict[int, list[int]] = {}
        """By client, how often each of its next rounds was begun before the interruptions."""
        self._evaluations: Counter[int] = Counter()
        self._recorded = 0
        self._attached: tuple[int, ...] = ()

    def of(self, client: int) -> int:
        """Return how often a client may have sent the batches of its next round before."""
        return self._lost[client] + next(iter(self._repeats.get(client, ())), 0)

    @property
    def lost(self) -> Collection[int]:
        """The clients that were lost in the last round that they began."""
        return self._lost.keys()

    @property
    def clients(self) -> set[int]:
        """All clients that have begun rounds which they did not finish."""
        return {client for client in {*self._lost, *self._repeats} if self.of(client)}

    def of_evaluation(self, client: int) -> int:
        """Return how often a client may have sent its test data since its last state."""
        return self._evaluations[client]

    def recorded(self) -> None:
        """Count a beginning that the run has recorded."""
        self._recorded += 1

    def resume(self, begun: Sequence[Begun]) -> bool:
        """Take up what has begun since this state was stored; return whether records are missing.

        Parameters
        ----------
        begun
            All that the run has recorded, in order. A round that follows the same or a later one
            is the first after an interruption.
        """
        missing = len(begun) < self._recorded
        since = begun if missing else begun[self._recorded :]
        self._recorded = len(begun)
        self._evaluations.update(client for one in since if one.evaluates for client in one.clients)
        rounds: Counter[int] = Counter()
        again: Counter[int] = Counter()
        last = 0
        for one in since:
            if one.evaluates:
                continue
            if one.round <= last:
                rounds.clear()
                again.clear()
            for client in one.clients:
                if client in rounds:
                    again[client] += client in one.again
                self._owe(client, rounds[client] - again[client], rounds[client])
                rounds[client] += 1
            last = one.round
        return missing

    def _owe(self, client: int, first: int, last: int) -> None:
        """Count a begun round for the client's next rounds from the `first` to the `last`."""
        repeats = self._repeats.setdefault(client, [])
        repeats += [0] * (last + 1 - len(repeats))
        repeats[first : last + 1] = [times + 1 for times in repeats[first : last + 1]]

    def on_begin(self, event: RoundBegun) -> None:
        """Count the round for all nodes that attached to it."""
        self._attached = tuple(event.nodes)
        self._lost.update(self._attached)

    def on_round(self, event: RoundDone) -> None:
        """Drop the counts of those that finished it; who was not asked keeps its count."""
        for client in self._attached:
            if client not in event.failures:
                del self._lost[client]
                if (repeats := self._repeats.get(client)) is not None:
                    del repeats[0]
                    if not repeats:
                        del self._repeats[client]

    @contextmanager
    def evaluating(self, clients: Collection[int], failures: Collection[int]) -> Iterator[None]:
        """Count an evaluation within a `with` block, until it ends: then states have what was sent.

        Parameters
        ----------
        failures
            Those that fail meanwhile, whose states may lack it.
        """
        self._evaluations.update(clients)
        yield
        for client in clients:
            if client not in failures:
                del self._evaluations[client]

    def forget(self) -> None:
        """Forget all counts."""
        self.restore(UnfinishedRounds().state())

    def state(self) -> dict[str, Any]:
        """Return the counts."""
        return {
            "lost": text_keys(self._lost),
            "repeats": {str(client): list(times) for client, times in self._repeats.items()},
            "evaluations": text_keys(self._evaluations),
            "recorded": self._recorded,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._lost = Counter(whole_keys(state["lost"]))
        self._repeats = {int(client): list(times) for client, times in state["repeats"].items()}
        self._evaluations = Counter(whole_keys(state["evaluations"]))
        self._recorded = state["recorded"]
