"""Where a node records what its clients have spent, over all runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.privacy import Exposure
from flwr_splitmix.privacy.events import Channel
from flwr_splitmix.privacy.journal import JournalError, reason_of
from flwr_splitmix.privacy.ledger_file import LedgerFile

log = logging.getLogger("flwr.splitmix")


@dataclass(frozen=True)
class NodeLedger:
    """Where a node records what its client has spent.

    Parameters
    ----------
    path
        The file; None if the node has no folder for it.
    run
        Identifier that distinguishes runs with different records.
    """

    path: Path | None
    run: str

    def open(self, records: int, budget: PrivacyBudget) -> LedgerFile | None:
        """Open the file; return None if that fails and there is no limit.

        Raises
        ------
        ClientError
            If there is a `max_epsilon` but no file can be kept.
        """
        reason = "the node has no state-dir"
        if self.path is not None:
            try:
                return LedgerFile(self.path, self.run, records)
            except (OSError, JournalError) as error:
                reason = reason_of(error)
        if budget.max_epsilon is not None:
            raise ClientError(
                f"this node has max_epsilon = {budget.max_epsilon:g}, and no privacy ledger can be "
                f"kept on it ({reason}), so nothing is sent"
            )
        log.warning("the privacy ledger is not kept on this node: %s", reason)
        return None

    def expose(self, channel: Channel, records: int) -> None:
        """Note once that data leave without an epsilon; a warning says if that cannot be written.

        A node without a folder has no such file, and its client's state says it.
        """
        if self.path is None:
            return
        try:
            file = LedgerFile(self.path, self.run, records)
            if channel not in file.ledger.total().notes:
                file.charge(file.ledger.price(Exposure(channel)), None)
        except (OSError, JournalError) as error:
            log.warning("the privacy ledger is not kept on this node: %s", reason_of(error))
