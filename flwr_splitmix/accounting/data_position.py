"""A client's passes over its data, as far as a server can count them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from typing import Any, Self

from flwr_splitmix.description import SplitDescription


@dataclass
class DataPosition:
    """A client's position in its data; its fields are what a checkpoint keeps.

    `begun` is the newest round, at whose beginning `place` batches of a pass were drawn; `finished`
    is the newest in which the client was asked for a batch. `unfinished` has the numbers of batches
    asked for in the rounds since the last one that it finished, and `earlier` the lengths, in
    batches, of earlier attempts that are to be charged; None where the length is not known.
    `unanswered` is the number of batches asked for in this round that have not come.
    """

    per_epoch: int = 0
    batch: int = 0
    tokens: int = 0
    width: int = 0
    drawn: int = 0
    offset: int = 0
    begun: int = 0
    finished: int = 0
    place: int = 0
    earlier: list[int | None] = field(default_factory=list)
    unfinished: list[int | None] = field(default_factory=list)
    unanswered: int = 0
    asked: bool = False
    aligned: bool = True
    public_tests: bool = False

    @classmethod
    def met(cls, description: SplitDescription) -> Self:
        """Return the position of a client seen for the first time, perhaps amid a pass."""
        return cls(aligned=not _place_in(description))

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """Return the position in a `state`; raise ValueError if it has other fields."""
        names = {one.name for one in fields(cls)}
        if other := sorted(names ^ state.keys()):
            raise ValueError(f"a client's place in its data has, or lacks, {', '.join(other)}")
        return cls(**state)

    def state(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)

    def begin_round(
        self,
        server_round: int,
        description: SplitDescription,
        attempts: Sequence[int | None],
        *,
        same_object: bool,
    ) -> None:
        """Begin a round.

        Parameters
        ----------
        attempts
            How many batches the client may have sent in each earlier attempt at the round, with
            other noise.
        same_object
            Whether the client is the object that was asked for all that is charged here.
        """
        size = (description.batch_size, _per_epoch(description))
        resized = size != (self.batch, self.per_epoch)
        if self.finished and (resized or description.state_round < self.finished):
            # Other batches, an unfinished round, or a rewind: wherever the client continues, it
            # pays again.
            self.offset, self.drawn, self.aligned = self.epoch + 1, 0, False
        self.batch, self.per_epoch = size
        self.tokens, self.width = description.segment.tokens, description.segment.width
        self.place = _place_in(description)
        # A repeated round sends the same batches, with fresh noise unless secrets repeat too. What
        # no plan has priced yet is still owed.
        if same_object:
            # It repeats nothing, and what came is charged; the rest it may have sent.
            self.earlier += [1] * self.unanswered
        else:
            self.earlier = longest(self.earlier, attempts)
        if description.repeatable_secrets:
            self.earlier = []
        self.unanswered = 0
        # A round counts from its first batch on: one drawn again before that has sent nothing.
        self.begun, self.asked = server_round, False
        self.public_tests = description.uploads.public_evaluation

    def count_batch(self) -> None:
        """Count a batch that the client is asked for."""
        if not self.asked:
            self.asked, self.finished = True, self.begun
            self.unfinished.append(0)
        self.unfinished[-1] = (self.unfinished[-1] or 0) + 1
        self.unanswered += 1
        self.drawn += 1

    def finish(self) -> None:
        """End a round that the client has finished."""
        self.unfinished, self.unanswered = [], 0

    def most(self, batches: int) -> int:
        """Return the most occurrences of a record in so many batches from the round's beginning."""
        if not self.per_epoch:
            return batches * self.batch
        return (self.place + batches - 1) // self.per_epoch + 1 if batches else 0

    def forget_unknown(self) -> bool:
        """Forget earlier attempts of unknown length; return whether there were any."""
        known_lengths: list[int | None] = [length for length in self.earlier if length is not None]
        any_unknown = len(known_lengths) < len(self.earlier)
        self.earlier = known_lengths
        return any_unknown

    @property
    def earlier_times(self) -> int:
        """How often a record may occur in all earlier attempts of known length."""
        return sum(self.most(length) for length in self.earlier if length is not None)

    @property
    def epoch(self) -> int:
        """Index of the newest batch's pass; with replacement, each batch is a pass of its own."""
        drawn = max(self.drawn - 1, 0)
        return self.offset + (drawn // self.per_epoch if self.per_epoch else drawn)

    @property
    def copies(self) -> int:
        """Most occurrences of a record in what is charged as one batch or one pass.

        With replacement, a batch may consist of one record. A pass counted from the middle of
        another spans the end of one and the beginning of the next: 2.
        """
        if not self.per_epoch:
            return self.batch
        return 1 if self.aligned else 2


def _per_epoch(description: SplitDescription) -> int:
    """Return the full batches of a client's pass."""
    return description.num_examples // description.batch_size


def _place_in(description: SplitDescription) -> int:
    """Return the batches of a pass that a client has drawn; if it reports none, the most."""
    drawn = description.drawn
    if drawn is None:
        drawn = -1 if description.state_round else 0
    return drawn % max(_per_epoch(description), 1)


def longest(one: Sequence[int | None], other: Sequence[int | None]) -> list[int | None]:
    """Return the lengths of attempts known to two parties, each perhaps not to both.

    The longest known to one is taken for the longest known to the other, and so on. None, an
    unknown length, is the longest.
    """
    both = (sorted(lengths, key=_size, reverse=True) for lengths in (one, other))
    return [max(pair, key=_size) for pair in zip_longest(*both, fillvalue=0)]


def _size(length: int | None) -> float:
    return math.inf if length is None else length
