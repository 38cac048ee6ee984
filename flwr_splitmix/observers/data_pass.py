"""A client's passes over its data, as far as a server can count them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

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
        How many batches of a pass it has drawn, or something that is 0 only if it has drawn none.
    repeats
        Whether its secrets are the run's seed's, so that a repeated round has the same noise.
    """

    batch: int
    per_epoch: int
    tokens: int
    width: int
    state_round: int
    begun: int
    repeats: bool
    public_tests: bool
    batch_norm: bool

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
            begun=drawn % max(per_epoch, 1) if type(drawn) is int else state_round,
            repeats=described.get("repeatable-secrets") is True,
            public_tests=described.get("public-evaluation") is True,
            batch_norm=described.get("batch-norm") is True,
        )


@dataclass
class DataPass:
    """A client's position in its data; its fields are what a checkpoint keeps.

    `begun` is the newest round, `finished` the newest in which the client was asked for a batch,
    and `unfinished` the number of those since the last one that it finished.
    """

    per_epoch: int = 0
    batch: int = 0
    tokens: int = 0
    width: int = 0
    drawn: int = 0
    offset: int = 0
    begun: int = 0
    finished: int = 0
    attempts: int = 0
    unfinished: int = 0
    asked: bool = False
    aligned: bool = True
    public_tests: bool = False

    @classmethod
    def met(cls, said: Description) -> Self:
        """Return the position of a client that is met for the first time, perhaps amid a pass."""
        return cls(aligned=not said.begun)

    def begin_round(self, server_round: int, said: Description, attempts: int) -> None:
        """Begin a round.

        Parameters
        ----------
        attempts
            How often the client may have sent the round's batches before, with other noise.
        """
        resized = (said.batch, said.per_epoch) != (self.batch, self.per_epoch)
        if self.finished and (resized or said.state_round < self.finished):
            # Other batches, an unfinished round, or a rewind: wherever the client continues, it
            # pays again.
            self.offset, self.drawn, self.aligned = self.epoch + 1, 0, False
        self.batch, self.per_epoch = said.batch, said.per_epoch
        self.tokens, self.width = said.tokens, said.width
        # A repeated round sends the same batches, with fresh noise unless secrets repeat too.
        self.attempts = 0 if said.repeats else attempts
        # A round counts from its first batch on: one that is drawn again before has sent nothing.
        self.begun, self.asked = server_round, False
        self.public_tests = said.public_tests

    def draw(self) -> None:
        """Count a batch that the client is asked for."""
        if not self.asked:
            self.asked, self.finished = True, self.begun
            self.unfinished += 1
        self.drawn += 1

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
