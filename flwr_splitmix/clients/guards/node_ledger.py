"""Where a node records what its clients have spent, over all runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.guards.exposure_notes import ExposureNotes
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.privacy.journal import JournalError, reason_of
from flwr_splitmix.privacy.ledger_file import LedgerFile

log = logging.getLogger("flwr.splitmix")


@dataclass(frozen=True)
class NodeLedger(ExposureNotes):
    """Where a node records what its client has spent; parameters as of `ExposureNotes`."""

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
