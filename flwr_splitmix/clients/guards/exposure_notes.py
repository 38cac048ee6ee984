"""A node's note, for its ledger of all runs, that data leave without an epsilon in it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from flwr_splitmix.privacy import Exposure
from flwr_splitmix.privacy.events import Channel
from flwr_splitmix.privacy.journal import JournalError, reason_of
from flwr_splitmix.privacy.ledger_file import LedgerFile

log = logging.getLogger("flwr.splitmix")


@dataclass(frozen=True)
class ExposureNotes:
    """Where a node notes what no ledger counts.

    Parameters
    ----------
    path
        The file of the node's ledger; None if the node has no folder for it.
    run
        Identifier that distinguishes runs with different records.
    """

    path: Path | None
    run: str

    @classmethod
    def on_node(cls, folder: Path | None, index: int, run: str) -> Self:
        """Return the notes of a node's client in the node's folder, if it has one."""
        return cls(None if folder is None else folder / f"privacy-ledger-{index}.jsonl", run)

    def expose(self, channel: Channel, records: int = 1) -> None:
        """Note once that data leave without an epsilon; warn if that cannot be written.

        A node without a folder has no such file.

        Parameters
        ----------
        records
            Number of the client's training examples, all of which it counts for; 1 if nothing else
            is charged to them in this run.
        """
        if self.path is None:
            return
        try:
            file = LedgerFile(self.path, self.run, records)
            if channel not in file.ledger.total().notes:
                file.charge(file.ledger.price(Exposure(channel)), None)
        except (OSError, JournalError) as error:
            log.warning("the privacy ledger is not kept on this node: %s", reason_of(error))
