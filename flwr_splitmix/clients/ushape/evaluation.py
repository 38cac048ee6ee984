"""A client's evaluations: each test example is sent once, and only means are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from flwr_splitmix.clients.client import ClientError, Order
from flwr_splitmix.clients.evaluation_sets import evaluation_set
from flwr_splitmix.clients.guards.first_weights import run_id
from flwr_splitmix.clients.ushape.checked_methods import check_counted
from flwr_splitmix.data.examples import ExampleSet, fetch
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import Sent
from flwr_splitmix.privacy.journal import JournalError, SharedJournal, read_journal, reason_of
from flwr_splitmix.scoring.texts import Scores, TextScores


class SentTests:
    """A node's record of the test examples already sent; it outlives the process of one message.

    It goes by head and tail, which the client knows, and not by the round, which the server says.
    The server names the run, too, but an honest second run begins with the weights of the first.
    All runs stay on record, as a server could begin another one in between.

    Parameters
    ----------
    path
        The file.
    run
        Identifies the run; only its `run_id` counts.
    weights
        Returns a digest of the client's head and tail as they are now.

    Raises
    ------
    ClientError
        If the file cannot be written, or is damaged.
    """

    def __init__(self, path: Path, run: str, weights: Callable[[], str]) -> None:
        self._run, self._weights = run_id(run), weights
        self._stops: dict[tuple[str, str, str], int] = {}
        with _noted():
            self._journal = SharedJournal(path, durable=False)
            with self._journal.held() as journal:
                if self._read() > len(self._stops):  # only the last entry of a pass counts
                    journal.replace([self._entry(key) for key in self._stops])
                self._journal.note_seen()

    def _read(self) -> int:
        """Read what any process has recorded; return the number of entries."""
        entries = read_journal(self._journal.path)
        for entry in entries:
            try:
                key = run_id(entry["run"]), entry["weights"], entry["kind"]
                self._stops[key] = max(entry["stop"], self._stops.get(key, 0))
            except KeyError as error:
                path = self._journal.path
                raise JournalError(
                    f"{path.name} has a line without {error}, which this version of flwr-splitmix "
                    "does not write: move the file away when its runs have ended"
                ) from error
        return len(entries)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the file, so that no other process sends examples between a look and a note.

        Raises
        ------
        ClientError
            If the file cannot be read or written: then nothing may be sent.
        """
        with _noted(), self._journal.held():
            if self._journal.changed:
                self._read()
                self._journal.note_seen()
            yield

    def sent(self, kind: str) -> int:
        """Return how many examples of a kind were sent in this run under this head and tail."""
        return self._stops.get((self._run, self._weights(), kind), 0)

    def note(self, kind: str, stop: int) -> None:
        """Record that examples up to `stop` are sent; raises as `held`."""
        key = self._run, self._weights(), kind
        with self.held():
            self._stops[key] = stop
            self._journal.append(self._entry(key))
            self._journal.note_seen()

    def _entry(self, key: tuple[str, str, str]) -> dict[str, Any]:
        run, weights, kind = key
        return {"run": run, "weights": weights, "kind": kind, "stop": self._stops[key]}


@contextmanager
def _noted() -> Iterator[None]:
    try:
        yield
    except (OSError, JournalError) as error:
        said = f"test examples cannot be noted on this node: {reason_of(error)}"
        raise ClientError(said) from None


class EvaluationPlace(NamedTuple):
    """Where a client is in a run; at each place it sends a test example once.

    Attributes
    ----------
    draw_seed
        That of the order: each `fit` that goes on with the clients counts its rounds from 1.
    server_round
        The round.
    drawn
        Training batches drawn so far.
    """

    draw_seed: int | None
    server_round: int
    drawn: int

    @classmethod
    def of(cls, order: Order, drawn: int) -> EvaluationPlace:
        """Return the place of an order, given the batches drawn so far."""
        return cls(order.draw_seed, order.server_round, drawn)


class UShapeEvaluation:
    """The test examples that a server may ask for in a round, in order, and their scores.

    Scores of single examples would reveal their labels, and an example that is mixed twice
    becomes readable.

    Parameters
    ----------
    place
        Where the client is; None before the first round of a run.
    tests
        Test sets by the kind of evaluation; None if the client has none.
    scores
        Creates the scores of an evaluation.
    device
        Device of the batches.
    batch_size
        Most examples that are sent at once.
    kept
        Where a node records what was sent; None: a simulation, which keeps no record.

    Attributes
    ----------
    awaiting
        The test batch that awaits its answer; None if there is none.
    going
        The kind of the examples being sent, and their indices: int64 (b,).
    sent_up_to
        By kind, how many examples this object has sent.
    messages
        How many batches it has sent; each token of generated texts is one.
    """

    def __init__(
        self,
        place: EvaluationPlace | None,
        tests: Mapping[str, ExampleSet | None],
        scores: Scores,
        device: torch.device,
        batch_size: int,
        kept: SentTests | None = None,
    ) -> None:
        self.place = place
        self.tests = tests
        self.scores = scores
        self.device = device
        self.batch_size = batch_size
        self.awaiting: Sent | None = None
        self.going: tuple[str, np.ndarray] = ("", np.empty(0, dtype=np.int64))
        self.sent_up_to: dict[str, int] = {}
        self.messages = 0
        self._kept = kept
        self._answered: dict[str, int] = {}  # how many examples have got their answer
        self._scores: dict[str, TextScores] = {}
        self._current: TextScores | None = None

    def begin(self, kind: str, start: int, stop: int) -> MaskedBatch:
        """Return the first batch to send for test examples `start` to `stop`.

        Raises
        ------
        ClientError
            If there are no such examples, they are more than a batch, or it is not their turn.
        """
        with nullcontext() if self._kept is None else self._kept.held():
            return self._begin(kind, start, stop)

    def _begin(self, kind: str, start: int, stop: int) -> MaskedBatch:
        data = evaluation_set(self.tests, kind)
        if not type(start) is type(stop) is int:  # 0.0 to 0.5 would be example 0, time and again
            raise ClientError("the server asks for test examples by numbers that are not whole")
        size, following = len(data), self.sent_up_to.get(kind, 0)  # type: ignore[arg-type]
        if self.awaiting is None and (start, following) == (0, size):
            raise ClientError(
                f"all {size} {kind} test examples were sent in this round, and each is sent once"
            )
        if self._kept is not None:
            following = max(following, self._kept.sent(kind))
        if self.awaiting is None and (start, following) == (0, size):
            raise ClientError(
                f"all {size} {kind} test examples were sent under this head and tail, and each "
                "is sent once: it has not trained since (it is not in every round: see "
                "fraction-train)"
            )
        if self.awaiting is not None or start != following or not start < stop <= size:
            raise ClientError(
                f"the server asks for {kind} test examples {start} to {stop}; "
                f"next is {following} of {size}"
            )
        if stop - start > self.batch_size:
            raise ClientError(
                f"the server asks for {stop - start} test examples at once; this client sends at "
                f"most {self.batch_size}, its batch size"
            )
        if self._kept is not None:
            self._kept.note(kind, stop)
        self.sent_up_to[kind] = stop
        if kind not in self._scores:
            self._scores[kind] = self.scores()
        self._current = self._scores[kind]
        self.going = kind, np.arange(start, stop)
        batch = MaskedBatch.of(fetch(data, self.going[1], floats=True), self.device)
        return self._current.begin(batch)

    def add(self, logits: torch.Tensor, batch: MaskedBatch) -> MaskedBatch | None:
        """Score a batch's logits and return the next batch to send; None if this one is done."""
        assert self._current is not None
        following = self._current.add(logits, batch)
        if following is None:
            kind, indices = self.going
            self._answered[kind] = self._answered.get(kind, 0) + len(indices)
        return following

    def finish(self, kind: str) -> TextScores:
        """Return the scores of a whole test set, once.

        Raises
        ------
        ClientError
            If not all of its examples have been scored, or own scores count something else.
        """
        scores, data = self._scores.get(kind), self.tests.get(kind)
        size = None if data is None else len(data)  # type: ignore[arg-type]
        # What an earlier process sent, or this one before it was attached again, has no scores.
        whole = self.sent_up_to.get(kind) == self._answered.get(kind) == size
        if scores is None or size is None or not whole or self.awaiting is not None:
            raise ClientError(f"this client has not scored its {kind} test data, or not all of it")
        check_counted(scores.examples, size, f"its {kind} test data are {size}")
        del self._scores[kind]
        return scores
