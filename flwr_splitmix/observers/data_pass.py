"""A client's passes over its data, as far as a server can count them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import zip_longest
from typing import Any, NamedTuple, Self

from flwr_splitmix.privacy.events import UNBOUNDED
from flwr_splitmix.values import MAX_COUNT

_NUMBERS = ("batch-size", "num-examples", "prefix", "patches", "width", "state-round")


class Description(NamedTuple):
    """What a ledger reads of a client's description of itself.

    Attributes
    ----------
    batch, per_epoch
        Examples of a batch, and full batches of a pass.
    tokens, width
        Of one example's smashed data.
    state_round
        The last round that the client's state has.
    begun
        How many batches of a pass it has drawn: if it does not say, the most that it can have been.
    repeats
        Whether its secrets are the run's seed's, so that a repeated round has the same noise.
    goes_on
        Whether it is the object that was asked for all batches since this ledger met it. A client
        that is made anew for each round, as on a node, does not say so.
    unbounded
        Why what it has sent before, perhaps in other runs, has no epsilon: keys of `UNBOUNDED`,
        sorted; empty if it has one, or the client does not say.
    """

    batch: int
    per_epoch: int
    tokens: int
    width: int
    state_round: int
    begun: int
    repeats: bool
    goes_on: bool
    public_tests: bool
    batch_norm: bool
    unbounded: tuple[str, ...]

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Self | None:
        """Return what it says; None if it lacks a non-negative integer, or has one beyond a size.

        A size is at most 2^31 - 1.
        """
        numbers: list[Any] = [described.get(key) for key in _NUMBERS]
        if not all(type(number) is int and number >= 0 for number in numbers):
            return None
        *sizes, state_round = numbers
        if max(sizes) > MAX_COUNT:  # a sum of very long integers has no place in a checkpoint
            return None
        batch, examples, prefix, patches, width = sizes
        per_epoch = examples // max(batch, 1)
        drawn = described.get("drawn")
        return cls(
            batch=batch,
            per_epoch=per_epoch,
            tokens=prefix + patches,
            width=width,
            state_round=state_round,
            begun=(drawn if type(drawn) is int else -bool(state_round)) % max(per_epoch, 1),
            repeats=described.get("repeatable-secrets") is True,
            goes_on=described.get("goes-on") is True,
            public_tests=described.get("public-evaluation") is True,
            batch_norm=described.get("batch-norm") is True,
            unbounded=_reasons(described.get("unbounded")),
        )


@dataclass
class DataPass:
    """A client's position in its data; its fields are what a checkpoint keeps.

    `begun` is the newest round, at whose beginning `place` batches of a pass were drawn; `finished`
    is the newest in which the client was asked for a batch. `unfinished` has the numbers of batches
    asked for in the rounds since the last one that it finished, and `earlier` the lengths, in
    batches, of earlier attempts that are to be charged; None where the length is not known.
    `unanswered` is the number of batches asked for in this round of which nothing came.
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
    def met(cls, said: Description) -> Self:
        """Return the position of a client that is met for the first time, perhaps amid a pass."""
        return cls(aligned=not said.begun)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """Return what `state` has kept; raise ValueError if it has other fields."""
        names = {one.name for one in fields(cls)}
        if other := sorted(names ^ state.keys()):
            raise ValueError(f"a client's place in its data has, or lacks, {', '.join(other)}")
        return cls(**state)

    def state(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return asdict(self)

    def begin_round(
        self, server_round: int, said: Description, attempts: Sequence[int | None]
    ) -> None:
        """Begin a round.

        Parameters
        ----------
        attempts
            How many batches the client may have sent in each earlier attempt at the round, with
            other noise.
        """
        resized = (said.batch, said.per_epoch) != (self.batch, self.per_epoch)
        if self.finished and (resized or said.state_round < self.finished):
            # Other batches, an unfinished round, or a rewind: wherever the client continues, it
            # pays again.
            self.offset, self.drawn, self.aligned = self.epoch + 1, 0, False
        self.batch, self.per_epoch = said.batch, said.per_epoch
        self.tokens, self.width = said.tokens, said.width
        self.place = said.begun
        # A repeated round sends the same batches, with fresh noise unless secrets repeat too. What
        # no plan has priced yet is still owed.
        if said.goes_on:  # it repeats nothing, and what came is charged; the rest it may have sent
            self.earlier += [1] * self.unanswered
        else:
            self.earlier = longest(self.earlier, attempts)
        if said.repeats:
            self.earlier = []
        self.unanswered = 0
        # A round counts from its first batch on: one that is drawn again before has sent nothing.
        self.begun, self.asked = server_round, False
        self.public_tests = said.public_tests

    def draw(self) -> None:
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
        """Return how often a record may occur in so many batches from the round's beginning on."""
        if not self.per_epoch:
            return batches * self.batch
        return (self.place + batches - 1) // self.per_epoch + 1 if batches else 0

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


def _reasons(said: object) -> tuple[str, ...]:
    """Return which keys of `UNBOUNDED` a client names; others, of another version, as "unknown"."""
    named = said if isinstance(said, (list, tuple)) else ()
    known = (key if isinstance(key, str) and key in UNBOUNDED else "unknown" for key in named)
    return tuple(sorted(set(known)))


def longest(one: Sequence[int | None], other: Sequence[int | None]) -> list[int | None]:
    """Return the lengths of attempts of which two parties know, each perhaps not of all.

    The longest that one knows is taken for the longest that the other knows, and so on. None, an
    unknown length, is the longest.
    """
    both = (sorted(lengths, key=_size, reverse=True) for lengths in (one, other))
    return [max(pair, key=_size) for pair in zip_longest(*both, fillvalue=0)]


def _size(length: int | None) -> float:
    return math.inf if length is None else length
