"""The privacy cost of a node's data over all runs, written to disk before anything is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flwr_splitmix.privacy.events import Relation
from flwr_splitmix.privacy.journal import Journal, JournalError, SharedJournal, read_journal
from flwr_splitmix.privacy.ledger import Charge, Ledger

VERSION = 3
"""Version of the format; a file of another one is refused."""

LONG = 1 << 18
"""Bytes below which a file is not summed up, however few its records."""

RECORD_BYTES = 52
"""Most bytes that the sums of one record take, for smashed data and labels."""

PLACES = 1000
"""Beginnings of rounds that the sums keep, the latest: a round that was interrupted is one of them.

A forgotten one is charged again if the round is repeated: too much, never too little."""

RELATION: Relation = "replace"
"""The relation of every such file: a record is replaced, which costs the most."""


class LedgerFile:
    """One node's charges over all runs; their total never decreases.

    Within a run each record pays for the batches that it was in. Another run may divide the data
    differently, so that its records are not the same: then what the worst record has paid there
    is charged to every record.

    Processes of several runs, or of one, may use a file at once: each holds it while it charges,
    and sees what the others have charged.

    A file of more than 256 kB that has become four times as long as the sums of each record is
    replaced by these when it is read. Every number stays the same, to the last bit.

    Parameters
    ----------
    path
        The file.
    run
        Identifier that distinguishes runs with different records.
    records
        Number of records of the client in this run.

    Attributes
    ----------
    ledger
        The node's spending, as far as this process has seen; it is up to date within `held`.
        Charge it through `charge` only.
    begun
        The number of times that this run has begun to charge from each place in its data on;
        likewise up to date.

    Raises
    ------
    OSError
        If it cannot be opened or written.
    JournalError
        If it is damaged or has another version, or another process keeps holding it.
    """

    def __init__(self, path: Path, run: str, records: int) -> None:
        self._journal = SharedJournal(path)
        self._key = (run, records)
        self._head = 0
        with self._journal.held() as journal:
            self._begin(journal)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the file, so that no other process charges it, and read what others have charged."""
        with self._journal.held() as journal:
            if self._journal.changed:
                heads, ledgers, begun = self._read()
                if self._key not in heads:  # another run has begun, and summed up all before it
                    journal.append(_first_line(*self._key))
                    heads, ledgers, begun = self._read()
                self._take(journal, heads, ledgers, begun)
            yield

    def charge(
        self, charge: Charge, records: ArrayLike | None, *, begins: int | None = None
    ) -> None:
        """Charge the ledger; the charge is on disk when this returns.

        Parameters
        ----------
        begins
            With a round's first charge, the place in the data from which the round continues.

        Raises
        ------
        OSError
            If it cannot be written: then nothing is charged, and nothing may be sent.
        """
        with self.held():
            of = {"head": self._head} if self._head else {}
            first = {} if begins is None else {"begins": begins}
            self._journal.append({**_plain(charge, records), **first, **of})
            self._journal.note_seen()
            self.ledger.post(charge, records=records)
            self.begun.update(first.values())

    def _begin(self, journal: Journal) -> None:
        """Continue this run's charges, or begin them after the sum of all earlier ones."""
        heads, ledgers, begun = self._read()
        if self._key not in heads:
            carried = [_plain(ledger.total(), None) for ledger in ledgers]
            journal.replace([_first_line(*self._key), *carried])
            heads, ledgers, begun = self._read()
        self._take(journal, heads, ledgers, begun)

    def _read(self) -> tuple[list[tuple[str, int]], list[Ledger], list[Counter[int]]]:
        """Return the runs in the file, each with its records; their ledgers; and `begun`."""
        heads: list[tuple[str, int]] = []
        ledgers: list[Ledger] = []
        begun: list[Counter[int]] = []
        for entry in read_journal(self._journal.path):
            if "version" in entry or not heads:
                if entry.get("version") != VERSION:
                    raise JournalError(
                        f"{self._journal.path.name} is not a ledger of version {VERSION}: continue "
                        "with the flwr-splitmix that wrote it, which alone knows what was spent"
                    )
                heads.append((entry["run"], entry["records"]))
                ledger, places = self._sums(entry)
                ledgers.append(ledger)
                begun.append(places)
                continue
            charge, charged = self._charged(entry)
            ledgers[entry.get("head", 0)].post(charge, records=charged)
            if "begins" in entry:
                begun[entry.get("head", 0)][int(entry["begins"])] += 1
        return heads, ledgers, begun

    def _charged(self, entry: Mapping[str, Any]) -> tuple[Charge, ArrayLike | None]:
        try:
            return _charge(entry)
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(f"{self._journal.path.name} has a bad charge: {error}") from error

    def _sums(self, entry: Mapping[str, Any]) -> tuple[Ledger, Counter[int]]:
        """Return the ledger and `begun` of a run's first line, which may sum up earlier lines."""
        ledger = Ledger(RELATION, entry["records"])
        try:
            if "ledger" in entry:
                ledger.load_state_dict(entry["ledger"])
            return ledger, Counter({int(place): int(n) for place, n in entry.get("begun", ())})
        except (TypeError, ValueError) as error:
            raise JournalError(f"{self._journal.path.name} has a bad sum: {error}") from error

    def _take(
        self,
        journal: Journal,
        heads: list[tuple[str, int]],
        ledgers: list[Ledger],
        begun: list[Counter[int]],
    ) -> None:
        """Adopt what was read, and sum up the file if it is long."""
        sums = RECORD_BYTES * sum(records for _, records in heads)
        if self._journal.path.stat().st_size > max(LONG, 4 * sums):
            journal.replace(
                [
                    {
                        **_first_line(*head),
                        "ledger": ledger.state_dict(),
                        "begun": list(places.items())[-PLACES:],
                    }
                    for head, ledger, places in zip(heads, ledgers, begun, strict=True)
                ]
            )
        self._head = heads.index(self._key)
        self.begun = begun[self._head]
        self.ledger = ledgers[self._head]
        for number, ledger in enumerate(ledgers):
            if number != self._head:
                self.ledger.post(ledger.total())
        self._journal.note_seen()


def _first_line(run: str, records: int) -> dict[str, Any]:
    return {"version": VERSION, "run": run, "records": records}


def _plain(charge: Charge, records: ArrayLike | None) -> dict[str, Any]:
    """Return a charge as JSON values, with infinity as text."""
    return {
        "batch": None if charge.batch is None else [repr(cost) for cost in charge.batch],
        "everywhere": repr(charge.everywhere),
        "notes": list(charge.notes),
        "count": charge.count,
        "records": None if records is None else np.asarray(records).tolist(),
    }


def _charge(entry: Mapping[str, Any]) -> tuple[Charge, ArrayLike | None]:
    batch = entry["batch"]
    return (
        Charge(
            None if batch is None else (float(batch[0]), float(batch[1])),
            float(entry["everywhere"]),
            tuple(entry["notes"]),
            int(entry["count"]),
        ),
        entry["records"],
    )
