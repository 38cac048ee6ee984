"""A client's evaluations of a round: each test text goes out once, and only means come back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch.utils.data import Dataset

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.data.batches import Example, fetch
from flwr_splitmix.data.texts.batch import TextBatch
from flwr_splitmix.hiding import Sent
from flwr_splitmix.scoring.texts import Scores, TextScores


class TextEvaluation:
    """The test texts that a server may ask for in a round, in order, and their scores.

    Scores of single texts would be their labels, and a text that is mixed twice is readable.

    Parameters
    ----------
    place
        The round, and how many batches had been drawn: nothing was learned since.
    tests
        Test sets by the kind of evaluation; None where the client has none.
    scores
        Makes what an evaluation is scored by.
    device
        Where batches are made.

    Attributes
    ----------
    sent
        The test batch whose answer is waited for; None if there is none.
    asked
        By kind, how many texts have gone out; it outlives a process, as a part of the state.
    """

    def __init__(
        self,
        place: tuple[int, int],
        tests: Mapping[str, Dataset[Example] | None],
        scores: Scores,
        device: torch.device,
    ) -> None:
        self.place = place
        self.tests = tests
        self.scores = scores
        self.device = device
        self.sent: Sent | None = None
        self.asked: dict[str, int] = {}
        self._scores: dict[str, TextScores] = {}
        self._current: TextScores | None = None

    def begin(self, kind: str, start: int, stop: int) -> TextBatch:
        """Return what is sent first of test texts `start` to `stop`.

        Raises
        ------
        ClientError
            If there are no such texts, or it is not their turn.
        """
        data = self.tests.get(kind)
        if data is None:
            raise ClientError(f"this client has no {kind} test data")
        size, following = len(data), self.asked.get(kind, 0)  # type: ignore[arg-type]
        if self.sent is not None or start != following or not start < stop <= size:
            raise ClientError(
                f"the server asks for {kind} test texts {start} to {stop}; "
                f"next is {following} of {size}"
            )
        self.asked[kind] = stop
        if kind not in self._scores:
            self._scores[kind] = self.scores()
        self._current = self._scores[kind]
        batch = TextBatch.of(fetch(data, np.arange(start, stop)), self.device)
        return self._current.begin(batch)

    def add(self, logits: torch.Tensor, batch: TextBatch) -> TextBatch | None:
        """Score a batch's logits; returns what is sent next, None where its texts are done."""
        assert self._current is not None
        return self._current.add(logits, batch)

    def finish(self, kind: str) -> TextScores:
        """Return the scores of a whole test set, once.

        Raises
        ------
        ClientError
            If not all of its texts have been scored.
        """
        scores, data = self._scores.get(kind), self.tests.get(kind)
        whole = data is not None and self.asked.get(kind) == len(data)  # type: ignore[arg-type]
        if scores is None or not whole or self.sent is not None:
            raise ClientError(f"this client has not scored its {kind} test data, or not all of it")
        del self._scores[kind]
        return scores
