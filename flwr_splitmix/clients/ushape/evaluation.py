"""A client's evaluations: each test example is sent once, and only means are reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.clients.client import ClientError, Order
from flwr_splitmix.clients.evaluation_sets import evaluation_set, stop_of
from flwr_splitmix.clients.ushape.checked_methods import (
    check_counted,
    checked_logits,
    plain_scores,
)
from flwr_splitmix.clients.ushape.messenger import Messenger
from flwr_splitmix.clients.ushape.sent_tests import SentTests
from flwr_splitmix.data.examples import ExampleSet, fetch
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding import SentBatch
from flwr_splitmix.hiding.epsilons import is_epsilon
from flwr_splitmix.scoring.texts import Scores, TextScores
from flwr_splitmix.seeding import seeded_draws
from flwr_splitmix.segments.batch_norm import enough_values
from flwr_splitmix.words import counted


class EvaluationPlace(NamedTuple):
    """The place of a client in a run; at each place it sends a test example once.

    Attributes
    ----------
    draw_seed
        The `draw_seed` of the server's `Order`: it distinguishes each `fit` that continues with
        the clients, as each counts its rounds from 1.
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
        """Return the place of the server's `Order`, given the batches drawn so far."""
        return cls(order.draw_seed, order.server_round, drawn)


class UShapeEvaluation:
    """The test examples that a server may ask for in a round, in order, and their scores.

    Scores of single examples would reveal their labels, and an example that is mixed twice
    becomes readable.

    Parameters
    ----------
    place
        The client's place in the run.
    tests
        Test sets by the kind of evaluation; None if the client has none.
    scores
        Creates the scores of an evaluation.
    messenger
        Makes the messages.
    batch_size
        Examples in a batch. The client divides its test sets into batches itself: one example at a
        time could not be mixed with others.
    least
        Fewest examples in a batch with which the hiding has an effect; see `stop_of`.
    seed_of
        The seed of each message's draws, by the number of messages before it: repeatable secrets
        are drawn from torch's generator.
    sent_tests
        Where a node records which examples were sent; None for a simulation, which keeps no record.
    """

    def __init__(
        self,
        place: EvaluationPlace,
        tests: Mapping[str, ExampleSet | None],
        scores: Scores,
        messenger: Messenger,
        batch_size: int,
        *,
        least: int,
        seed_of: Callable[[int], int],
        sent_tests: SentTests | None = None,
    ) -> None:
        self.place = place
        self._tests = tests
        self._new_scores = scores
        self._messenger = messenger
        self._batch_size, self._least = batch_size, least
        self._seed_of = seed_of
        self._sent_tests = sent_tests
        self._awaiting: SentBatch | None = None  # its answer
        self._examples: tuple[str, np.ndarray] = ("", np.empty(0, dtype=np.int64))
        self._sent_up_to: dict[str, int] = {}
        self._messages = 0  # each token of generated texts is one
        self._answered: dict[str, int] = {}  # how many examples have got their answer
        self._scores: dict[str, TextScores] = {}
        self._current: TextScores | None = None

    def forget_batch(self) -> None:
        """Drop a batch that awaits its answer, and will get none."""
        self._awaiting = None

    @torch.no_grad()
    def send(self, kind: str, start: int, stop: int) -> dict[str, Any]:
        """Return the messages of test examples `start` to `stop`; see `SentBatch.outgoing`.

        Raises
        ------
        ClientError
            If there are no such examples, they are no batch of this client's, it is not their turn,
            or all are fewer than the hiding needs.
        """
        with nullcontext() if self._sent_tests is None else self._sent_tests.held():
            batch = self._begin(kind, start, stop)
        self._messenger.ends.segments.eval()
        return self._send(batch)

    def _begin(self, kind: str, start: int, stop: int) -> MaskedBatch:
        data = evaluation_set(self._tests, kind)
        if not type(start) is type(stop) is int:  # 0.0 to 0.5 would be example 0, time and again
            raise ClientError("the server asks for test examples by numbers that are not whole")
        size, following = len(data), self._sent_up_to.get(kind, 0)  # type: ignore[arg-type]
        if self._awaiting is None and (start, following) == (0, size):
            raise ClientError(
                f"all {size} {kind} test examples were sent in this round, and each is sent once"
            )
        if self._sent_tests is not None:
            following = max(following, self._sent_tests.sent(kind))
        if self._awaiting is None and (start, following) == (0, size):
            raise ClientError(
                f"all {size} {kind} test examples were sent under this head and tail, and each "
                "is sent once: it has not trained since (it is not in every round: see "
                "fraction-train)"
            )
        if self._awaiting is not None or start != following or not start < stop <= size:
            raise ClientError(
                f"the server asks for {kind} test examples {start} to {stop}; "
                f"next is {following} of {size}"
            )
        expected_stop = stop_of(start, size, self._batch_size, self._least)
        if stop != expected_stop:
            raise ClientError(
                f"the server asks for {kind} test examples {start} to {stop}; this client sends "
                f"{start} to {expected_stop} at once, of {size}"
            )
        if (number := expected_stop - start) < self._least:
            raise ClientError(
                f"its {kind} test data have {counted(number, 'example')}, but "
                f"{self._hiding_needs}: give it at least {self._least}, or none"
            )
        if self._sent_tests is not None:
            self._sent_tests.note(kind, stop)
        self._sent_up_to[kind] = stop
        if kind not in self._scores:
            self._scores[kind] = self._new_scores()
        self._current = self._scores[kind]
        places = np.arange(start, stop)
        self._examples = kind, places
        batch = MaskedBatch.of(fetch(data, places, floats=True), self._messenger.device)
        return self._current.begin(batch)

    @property
    def _hiding_needs(self) -> str:
        name = type(self._messenger.hiding).__name__
        return f"{name} works only among several examples of a batch"

    def _send(self, batch: MaskedBatch) -> dict[str, Any]:
        if (number := len(batch.inputs)) < self._least:
            raise ClientError(
                f"its own scores send {counted(number, 'example')} next, but {self._hiding_needs}: "
                f"`begin` and `add` must return at least {self._least}, so send examples that are "
                "done along, as GenerationScores does"
            )
        self._messenger.hiding.charge(*self._examples)
        with seeded_draws(self._messenger.device, self._seed_of(self._messages)):
            self._awaiting = self._messenger.messages_of(batch, "test inputs")
        self._messages += 1
        return self._awaiting.outgoing()

    @torch.no_grad()
    def answer(self, outputs: Sequence[Tensor]) -> dict[str, Any]:
        """Score the trunk's outputs, (b, T, d) of each message of the batch in flight.

        Returns
        -------
        The messages to send next, for a text's next token; {} if the batch is done.

        Raises
        ------
        ClientError
            If they are no outputs for that batch, or a method of a subclass returns something
            else than it must.
        """
        sent = self._awaiting
        checked_outputs = self._messenger.outputs_for(sent, outputs)
        assert sent is not None  # else there were no outputs for it
        following = self._score(checked_outputs, sent)
        self._awaiting = None
        return {} if following is None else self._send(following)

    def _score(self, outputs: Sequence[Tensor], sent: SentBatch) -> MaskedBatch | None:
        """Score a batch and return the next one to send; None if its examples are done."""
        assert self._current is not None
        self._messenger.ends.segments.eval()
        hidden = self._messenger.recovered(outputs, sent)
        with enough_values("tail"):
            logits: object = self._messenger.hiding.logits(hidden, sent)
        own_scores, examples = self._new_scores is not TextScores, len(sent.batch.inputs)
        checked = checked_logits(logits, examples, own_scores=own_scores)
        following = self._current.add(checked, sent.batch)
        if following is None:
            kind, indices = self._examples
            self._answered[kind] = self._answered.get(kind, 0) + len(indices)
        return following

    def result(self, kind: str) -> dict[str, Any]:
        """Return the result of a whole test set, once.

        Returns
        -------
        {"examples": number, "scores": numbers by name}; with "epsilons" by name, if the hiding
        accounts for what is sent.

        Raises
        ------
        ClientError
            If not all of its examples have been scored, or own scores count something else.
        """
        scores, data = self._scores.get(kind), self._tests.get(kind)
        size = None if data is None else len(data)  # type: ignore[arg-type]
        # What an earlier process sent, or this one before it was attached again, has no scores.
        whole = self._sent_up_to.get(kind) == self._answered.get(kind) == size
        if scores is None or size is None or not whole or self._awaiting is not None:
            raise ClientError(f"this client has not scored its {kind} test data, or not all of it")
        check_counted(scores.examples, size, f"its {kind} test data are {size}")
        del self._scores[kind]
        spent = self._messenger.hiding.metrics()
        epsilons = {name: epsilon for name, epsilon in spent.items() if is_epsilon(name)}
        accounting = {"epsilons": epsilons} if epsilons else {}
        return {"examples": scores.examples, "scores": plain_scores(scores.result()), **accounting}
