"""The privacy cost of a node's data over all runs, written to disk before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flwr_splitmix.privacy.events import Relation
from flwr_splitmix.privacy.journal import Journal, JournalError, read_journal
from flwr_splitmix.privacy.ledger import Charge, Ledger

VERSION = 1

RELATION: Relation = "replace"
"""The relation of every such file: a record is replaced, which costs the most."""


class LedgerFile:
    """One node's charges over all runs; their total never decreases.

    Within a run each record pays for the batches that it was in. Another run may divide the data
    differently, so that its records are not the same: then what the worst record has paid so far
    is charged to every record.

    Parameters
    ----------
    path
        The file; another process cannot write it at the same time.
    run
        Identifier that distinguishes runs with different records.
    records
        Number of records of the client in this run.

    Attributes
    ----------
    ledger
        What the node has spent; charge it through `charge` only.

    Raises
    ------
    OSError
        If it cannot be opened or written.
    JournalError
        If it is damaged, has another version, or is being written by another process.
    """

    def __init__(self, path: Path, run: str, records: int) -> None:
        self.journal = Journal(path)
        try:
            self.ledger = self._open(run, records)
        except BaseException:
            self.journal.close()
            raise

    def _open(self, run: str, records: int) -> Ledger:
        head = {"version": VERSION, "run": run, "records": records}
        past, *charges = read_journal(self.journal.path) or [head]
        if past.get("version") != VERSION:
            raise JournalError(f"{self.journal.path.name} is no ledger of version {VERSION}")
        ledger = Ledger(RELATION, past["records"])
        for entry in charges:
            if "key" not in entry:  # early ledgers also noted a run's first weights
                charge, charged = _charge(entry)
                ledger.post(charge, records=charged)
        if charges and past == head:
            return ledger
        carried = ledger.total()
        self.journal.replace([head, _plain(carried, None)])
        ledger = Ledger(RELATION, records)
        ledger.post(carried)
        return ledger

    def charge(self, charge: Charge, records: ArrayLike | None) -> None:
        """Charge the ledger; the charge is on disk when this returns.

        Raises
        ------
        OSError
            If it cannot be written: then nothing is charged, and nothing may be sent.
        """
        self.journal.append(_plain(charge, records))
        self.ledger.post(charge, records=records)

    def close(self) -> None:
        """Close the file, so that another process may write it."""
        self.journal.close()


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
