"""What a client may have sent in rounds that it did not finish, and has not charged yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from flwr_splitmix.clients.client import Order
from flwr_splitmix.mixers import Share
from flwr_splitmix.mixers.accounting import earlier_releases
from flwr_splitmix.privacy import Event, Exposure
from flwr_splitmix.seeding import secrets_are_seeded

RecordsOf = Callable[[int, int], Iterable[np.ndarray]]
"""From the numbers of a first and a last batch, it excluded, to the records of these batches: int64
arrays, with each record as often as it is in them."""

Owed = tuple[Sequence[Event], np.ndarray]
"""Releases, and the records (n,), int64, that each owe all of them."""


class EarlierAttempts:
    """The batches that earlier attempts at a round may have sent, until they are charged.

    They have no price before a share tells the noise.

    Parameters
    ----------
    records
        Number of training examples.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        self._spans: list[tuple[int, int | None]] = []
        """First and last batch, it excluded; without a last one their number is not known."""

    def __bool__(self) -> bool:
        return bool(self._spans)

    def note(self, order: Order, place: int, held: int) -> None:
        """Note what an order says of them; nothing, if a repeated batch has the same noise.

        Parameters
        ----------
        place
            The batch at which the round begins, as did its earlier attempts.
        held
            How many of the attempts are charged already.
        """
        if secrets_are_seeded():
            return
        lengths, more = order.unheld(held)
        self._spans += [(place, place + length) for length in lengths if length]
        self._spans += [(place, None)] * more

    def owed(
        self, shares: Sequence[Share | None], shape: tuple[int, int, int], records_of: RecordsOf
    ) -> list[Owed]:
        """Return what is to be charged, with the noise of `shares`.

        Parameters
        ----------
        shares
            A batch's share of each pass, at least one of them.
        shape
            Shape of the smashed data (b, prefix + N, d).
        """
        times = np.zeros(self._records, dtype=np.int64)
        owed: list[Owed] = []
        for first, last in self._spans:
            if last is None:
                owed.append(([Exposure("uncounted")], np.empty(0, dtype=np.int64)))
                continue
            for records in records_of(first, last):
                times += np.bincount(records, minlength=self._records)
        for number in np.unique(times[times > 0]).tolist():
            releases = earlier_releases(shares, shape[1], shape[2], number)
            owed.append((releases, np.flatnonzero(times == number)))
        return owed

    def forget(self) -> None:
        """Forget all, as it is charged."""
        self._spans.clear()

    def state(self) -> list[list[int | None]]:
        """Return them as JSON values."""
        return [list(span) for span in self._spans]

    def restore(self, state: Sequence[Sequence[int | None]]) -> None:
        """Go on from `state`."""
        self._spans = [(first or 0, last) for first, last in state]
