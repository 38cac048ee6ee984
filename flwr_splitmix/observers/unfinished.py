"""Rounds that clients began and did not finish: they may send the same batches again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from flwr_splitmix.events import Exchange, RoundBegun, RoundDone
from flwr_splitmix.observers.observer import Observer
from flwr_splitmix.runs.begun import Begun
from flwr_splitmix.storage import text_keys, whole_keys


class Streak(NamedTuple):
    """The rounds that a client has begun, one after the other, and not finished.

    Attributes
    ----------
    rounds
        Their number.
    batches
        The batches that it may have sent in all of them; None if their number is not known.
    """

    rounds: int = 0
    batches: int | None = 0

    def and_one_of(self, batches: int | None) -> Streak:
        """Return the streak with a further round of at most so many batches."""
        return Streak(self.rounds + 1, _sum([self.batches, batches]))

    @property
    def lengths(self) -> list[int | None]:
        """Lengths of attempts that cover whatever was sent, the longest first.

        Each round continues where the client was lost in the one before, or begins again at the
        place of its state. So the rounds are chains from this place on, and a batch was sent as
        often as there are chains that reach it. Chains of more than n batches are at most `rounds`,
        and at most `batches` // (n + 1): as many as there are of these lengths above n.
        """
        if self.batches is None:
            return [None] * self.rounds
        return [self.batches // number for number in range(1, self.rounds + 1)]


class UnfinishedRounds(Observer):
    """Counts, for each client, earlier uploads of the batches that it is asked for next.

    A client that is lost in a round continues from its last state, which may lack what it charged
    itself in that round. After an interruption all clients continue from their states of the
    newest checkpoint: from there they send again what they have sent in the rounds since. One that
    was lost in one of these may then have repeated it, or continued where it was lost; both are
    counted.

    Each such attempt is known by its length: the number of batches, from the state's place in the
    data on, that it may have sent; None if that is not known. A client that finishes a
    round in which it was asked for a batch has charged them all, however long that round was.

    Attributes
    ----------
    protection
        A digest of the mixer and the noise of uploads, "" if it is not known; None without noise.
        Attempts with another one have no known length: the repeated round does not show their
        cost.
    """

    def __init__(self, protection: str | None = "") -> None:
        self.protection = protection
        self._lost: dict[int, Streak] = {}
        self._repeats: dict[int, list[int | None]] = {}
        """By client, its uploads before interruptions."""
        self._evaluations: Counter[int] = Counter()
        self._recorded = 0
        self._attached: dict[int, Streak] = {}
        """The clients of this round, with the attempts that each had not finished before."""
        self._idle: set[int] = set()
        """Clients that attached, and have not been asked for a batch yet."""

    def of(self, client: int) -> list[int | None]:
        """Return the lengths of earlier attempts at the client's next round, in batches."""
        return [*self._repeats.get(client, ()), *self._lost.get(client, Streak()).lengths]

    @property
    def lost(self) -> Collection[int]:
        """The clients that were lost in the last round that they began."""
        return self._lost.keys()

    @property
    def interrupted(self) -> Collection[int]:
        """Clients that may have sent something that no checkpoint has, and not finished since."""
        return self._repeats.keys()

    @property
    def clients(self) -> set[int]:
        """All clients that have begun rounds which they did not finish."""
        return {*self._lost, *self._repeats}

    def of_evaluation(self, client: int) -> int:
        """Return how often a client may have sent its test data since its last state."""
        return self._evaluations[client]

    def recorded(self) -> None:
        """Count a beginning that the run has recorded."""
        self._recorded += 1

    def resume(self, begun: Sequence[Begun]) -> bool:
        """Add what has begun since this state was stored; return whether records are missing.

        Parameters
        ----------
        begun
            All recorded beginnings of the run, in order. A round that follows the same or a later
            one is the first after an interruption.
        """
        missing = len(begun) < self._recorded
        since = begun if missing else begun[self._recorded :]
        self._recorded = len(begun)
        self._evaluations.update(client for one in since if one.evaluates for client in one.clients)
        uninterrupted: set[int] = set()
        last = 0
        for one in since:
            if one.evaluates:
                continue
            if one.round <= last:
                uninterrupted.clear()
            steps = one.steps if one.protection == (self.protection or "") else None
            for client in one.clients:
                attempts = self._repeats.setdefault(client, [])
                # It may have begun this round at its state, or where it was lost.
                before: Sequence[int | None] = ()
                if client in uninterrupted:
                    before = attempts[-1:]
                elif client in one.again:  # lost before the state was stored
                    before = self._lost.get(client, Streak()).lengths[:1]
                if client in uninterrupted and client not in one.again:
                    attempts.pop()  # the same attempt continues
                attempts.append(_sum([*before, steps]))
                uninterrupted.add(client)
            last = one.round
        return missing

    def on_begin(self, event: RoundBegun) -> None:
        """Count the round for all nodes that attached to it."""
        self._attached = {client: self._lost.get(client, Streak()) for client in event.nodes}
        self._idle = {client for client in self._attached if client in event.descriptions}
        for client, before in self._attached.items():
            self._lost[client] = before.and_one_of(event.steps)

    def on_exchange(self, event: Exchange) -> None:
        """Note the clients that are asked for a batch."""
        if event.phase == "train" and event.direction == "down" and _asks(event.payload):
            self._idle.discard(event.client)

    def on_round(self, event: RoundDone) -> None:
        """Drop the counts of clients that finished; those that were not asked keep theirs."""
        for client, before in self._attached.items():
            if client in self._idle:
                self._lost[client] = before
            elif client not in event.failures:
                self._lost[client] = Streak()
                self._repeats.pop(client, None)
            if not self._lost[client].rounds:
                del self._lost[client]

    @contextmanager
    def evaluating(self, clients: Collection[int], failures: Collection[int]) -> Iterator[None]:
        """Count an evaluation within a `with` block; after it states include what was sent.

        Parameters
        ----------
        failures
            Clients that fail meanwhile, whose states may lack it.
        """
        self._evaluations.update(clients)
        yield
        for client in clients:
            if client not in failures:
                del self._evaluations[client]

    def forget(self) -> None:
        """Forget all counts."""
        self.restore(UnfinishedRounds(self.protection).state())

    def state(self) -> dict[str, Any]:
        """Return the counts."""
        return {
            "lost-rounds": {str(client): list(streak) for client, streak in self._lost.items()},
            "repeated-lengths": _text_keys(self._repeats),
            "evaluations": text_keys(self._evaluations),
            "recorded": self._recorded,
            "protection": self.protection,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        lost_rounds = state["lost-rounds"]
        self._lost = {int(c): Streak(number, most) for c, (number, most) in lost_rounds.items()}
        self._repeats = _whole_keys(state["repeated-lengths"])
        if state["protection"] != self.protection:
            self._lost = {c: streak._replace(batches=None) for c, streak in self._lost.items()}
            for lengths in self._repeats.values():
                lengths[:] = [None] * len(lengths)
        self._evaluations = Counter(whole_keys(state["evaluations"]))
        self._recorded = state["recorded"]


def _sum(lengths: Sequence[int | None]) -> int | None:
    """Return the length of rounds one after the other; None if one is not known."""
    known_lengths = [length for length in lengths if length is not None]
    return sum(known_lengths) if len(known_lengths) == len(lengths) else None


def _asks(payload: Mapping[str, Any]) -> bool:
    """Return whether a batch is asked for, by a share in a plan, or in any step without plans."""
    if "plan" in payload:
        return any(share is not None for share in payload["plan"] or ())
    return not payload.get("last")  # it delivers gradients and asks for nothing


def _text_keys(attempts: Mapping[int, Sequence[int | None]]) -> dict[str, list[int | None]]:
    return {str(client): list(lengths) for client, lengths in attempts.items()}


def _whole_keys(attempts: Mapping[str, Sequence[int | None]]) -> dict[int, list[int | None]]:
    return {int(client): list(lengths) for client, lengths in attempts.items()}
