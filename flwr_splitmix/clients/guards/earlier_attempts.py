"""Uploads that a client may have sent in rounds that it did not finish, not charged yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from flwr_splitmix.accounting.uploads import earlier_releases
from flwr_splitmix.clients.client import MAX_EARLIER, Order
from flwr_splitmix.mixers import Share
from flwr_splitmix.privacy import Event, Exposure
from flwr_splitmix.seeding import secrets_are_seeded

RecordsOf = Callable[[int, int], Iterable[np.ndarray]]
"""From the numbers of a first and a last batch (the last excluded) to the records of these batches:
int64 arrays, with each record as often as it is in them."""

Owed = tuple[Sequence[Event], np.ndarray]
"""Releases, and the records (n,), int64, that each owe all of them."""


class BegunRound(NamedTuple):
    """A round that has begun.

    Parameters
    ----------
    order
        The server's instruction for it.
    place
        The place in the data at which it began: the number of batches drawn before.
    records_of
        The records of any of the client's batches.
    """

    order: Order
    place: int
    records_of: RecordsOf


class EarlierAttempts:
    """The batches that earlier attempts at a round may have sent, until they are charged.

    They have no price before a share states the noise.

    Parameters
    ----------
    records
        Number of training examples.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        self._spans: list[tuple[int, int | None]] = []
        """First and last batch (the last excluded); None as the last: their number is unknown."""
        self._times: np.ndarray | None = None
        """How often each record is in them, int64; None until it has been counted."""

    def __bool__(self) -> bool:
        return bool(self._spans)

    def note(self, order: Order, place: int, charged: int) -> None:
        """Note those that an order names; none, if a repeated batch has the same noise.

        If there are more than `MAX_EARLIER`, or they reach over more batches, with those that are
        still owed, their number is unknown.

        Parameters
        ----------
        place
            The batch at which the round begins, as did its earlier attempts.
        charged
            How many of the attempts are charged already.
        """
        if secrets_are_seeded():
            return
        self._times = None
        lengths, more = order.unheld(charged)
        self._spans += [(place, place + length) for length in lengths if length]
        reach = sum(last - first for first, last, _ in self._pieces())
        many = max(reach, len(self._spans)) > MAX_EARLIER
        unknown = more or many or any(last is None for _, last in self._spans)
        known_spans = [] if many else [span for span in self._spans if span[1] is not None]
        self._spans = [*known_spans, *[(place, None)] * unknown]

    def owed(
        self, shares: Sequence[Share | None], size: tuple[int, int], records_of: RecordsOf
    ) -> list[Owed]:
        """Return what is to be charged, with the noise of `shares`.

        Parameters
        ----------
        shares
            A batch's share of each pass, at least one of them.
        size
            Tokens (prefix + N) and width d of an example's smashed data.
        """
        if self._times is None:
            self._times = self._counted(records_of)
        times = self._times
        owed: list[Owed] = []
        if any(last is None for _, last in self._spans):
            owed.append(([Exposure("attempts")], np.empty(0, dtype=np.int64)))
        for number in np.unique(times[times > 0]).tolist():
            releases = earlier_releases(shares, *size, number)
            owed.append((releases, np.flatnonzero(times == number)))
        return owed

    def _counted(self, records_of: RecordsOf) -> np.ndarray:
        times = np.zeros(self._records, dtype=np.int64)
        for first, last, number in self._pieces():
            for records in records_of(first, last):
                times += number * np.bincount(records, minlength=self._records)
        return times

    def _pieces(self) -> Iterator[tuple[int, int, int]]:
        """Yield spans of batches in attempts of known length, with the number of these attempts.

        (first, last, number): batches from the first to the last (excluded) are in `number`.
        """
        steps: Counter[int] = Counter()
        for first, last in self._spans:
            if last is not None:
                steps[first] += 1
                steps[last] -= 1
        number = 0
        for first, last in pairwise(sorted(steps)):
            number += steps[first]
            if number:
                yield first, last, number

    def forget(self) -> None:
        """Forget all, as it is charged."""
        self._spans, self._times = [], None

    def state(self) -> list[list[int | None]]:
        """Return them as JSON values."""
        return [list(span) for span in self._spans]

    def restore(self, state: Sequence[Sequence[int | None]]) -> None:
        """Continue from `state`."""
        self._spans, self._times = [(first or 0, last) for first, last in state], None
