"""Texts that were mixed with others of their batch: the batch is solved before it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from flwr_splitmix.attacks.batch_ring import ring_of
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.texts.view import (
    PublicTexts,
    TextReading,
    TextRelease,
    TextView,
    head_states,
)
from flwr_splitmix.attacks.texts.vocabulary import ReaderAttack

__all__ = ["SolveTextBatch"]

ROUNDS = 2
"""How often all texts of a batch are read to find the direction that its ring loses."""

END_LENGTH = 0.05
"""Part of a state's usual length below which a text has ended: nothing else has such states."""


class SolveTextBatch(ReaderAttack):
    """Solve each batch for the hidden states of its texts, and read these as `vocabulary` does.

    It applies where each text of a batch is mixed with the next one (`NaiveMix`): the server has
    all messages of a batch, in its order, and knows lam (see `BatchRing`). A batch of odd size, or
    with another lam than 0.5, is solved exactly. Otherwise one direction is missing. After the end
    of a text its states are 0, which tells the direction there; before that, all texts of the batch
    are read without it, and again with the missing part that most readings agree on.
    """

    name = "solve-batch"
    needs: ClassVar[frozenset[str]] = frozenset({"base model", "decoder", "method"})
    source = "ours"

    def learn(self, view: TextView, public: PublicTexts | None) -> None:
        """Make the table of all tokens, and learn how the method mixes.

        Raises
        ------
        NotApplicable
            If the method does not mix the texts of a batch with each other.
        """
        knowledge = view.knowledge
        assert knowledge.client is not None
        ring = ring_of(knowledge.client(public or ()))
        if ring is None:
            raise NotApplicable(
                f"{knowledge.method} does not mix the texts of a batch with each other, so there "
                "is no batch to solve"
            )
        self.ring = ring
        super().learn(view, public)
        self._solved: tuple[Tensor, Tensor] | None = None

    def readings(self, release: TextRelease, view: TextView) -> Iterator[TextReading]:
        """Read the text's states in its solved batch, or, without the batch, its message."""
        states = release.messages[0]
        if release.batch is not None:
            states = self._states(release.batch[0])[release.place, : len(states)]
        ids = torch.zeros(len(states), dtype=torch.int64)
        text_states = self._text_states(states)
        ids[: len(text_states)], fit = self.reader.read(text_states, self.pairs)
        yield ids, fit, "solved batch"

    def _text_states(self, states: Tensor) -> Tensor:
        """Return a text's states (T, d) up to its end."""
        usual = float(self.reader.table.norm(dim=1).median())
        places = (states.norm(dim=1) > END_LENGTH * usual).nonzero()
        return states[: int(places.max()) + 1] if len(places) else states[:1]

    def _states(self, messages: Tensor) -> Tensor:
        """Return the states of all texts of a batch; the last batch is kept."""
        if self._solved is None or self._solved[0] is not messages:
            self._solved = messages, self._solve(messages)
        return self._solved[1]

    def _solve(self, messages: Tensor) -> Tensor:
        states = self.ring.solve(messages)
        if not self.ring.loses(len(states)):
            return states
        ends = _ends(messages)
        ended = torch.arange(states.shape[1]) >= ends[:, None]
        silence = torch.zeros_like(states).masked_fill(~ended[..., None], torch.nan)
        states = self.ring.settle(states, silence)
        for number in range(ROUNDS):
            if number and self.budget.must_end():
                break
            expected = torch.full_like(states, torch.nan)
            for row, end in enumerate(ends.tolist()):
                text_states = self._text_states(states[row, :end])
                ids, _ = self.reader.read(text_states)  # once, without pairs: most words will do
                expected[row, : len(text_states)] = head_states(self.parts, ids).double()
            expected[:, ended.any(0)] = torch.nan  # there nothing is missing any more
            states = self.ring.settle(states, expected)
        return states


def _ends(messages: Tensor) -> Tensor:
    """Return where texts have ended for sure, int64 (b,), from the messages (b, T, d) of a ring.

    A text is in its own message and in that before, each of which ends with the longer of two.
    """
    places = torch.arange(1, messages.shape[1] + 1)
    lengths = ((messages != 0).any(2) * places).amax(1)
    return torch.minimum(lengths, lengths.roll(1)).clamp(min=1)
