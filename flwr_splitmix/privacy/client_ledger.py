"""A client's ledger in memory, which shrinks with no state that it continues from."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from flwr_splitmix.privacy.events import Relation
from flwr_splitmix.privacy.ledger import Ledger


class ClientLedger(Ledger):
    """A ledger that outlives runs with its client, and is kept with the client's state.

    A resumed run has the ledger of its last round, which lacks what other runs have spent since.
    So a state that this ledger has returned or taken before changes nothing. To any other state it
    adds its own sum, charged to every record: perhaps too much, never too little. A copy is another
    ledger, even if it was pickled: it may lack what this one spends from then on.

    Parameters
    ----------
    relation, records
        As for `Ledger`.
    """

    def __init__(self, relation: Relation = "replace", records: int | None = None) -> None:
        super().__init__(relation, records)
        self._begin()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        self._id = secrets.token_hex(8)
        self._loaded_digest = b""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values, which identify this ledger."""
        return {**super().state_dict(), "of": self._id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; errors as for `Ledger`."""
        digest = sha256(json.dumps(state, sort_keys=True).encode()).digest()
        if state.get("of") == self._id or digest == self._loaded_digest:
            return
        spent = self.total()
        super().load_state_dict(state)
        self.post(spent)
        self._loaded_digest = digest
