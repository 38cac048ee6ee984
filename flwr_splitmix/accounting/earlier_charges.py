"""Charges for possible uploads in rounds that clients did not finish."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence

from flwr_splitmix.accounting.data_position import DataPosition
from flwr_splitmix.accounting.uploads import earlier_releases
from flwr_splitmix.mixers import Share
from flwr_splitmix.privacy import Exposure, Ledger
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.words import epsilon_text

log = logging.getLogger("flwr.splitmix")

_SEVERAL = 3
"""Fewest charges for unfinished rounds of a client that fails again and again."""


class EarlierCharges:
    """Charges clients for earlier attempts at their rounds, and warns of those that keep failing.

    Attributes
    ----------
    owing
        Clients not yet charged for what they may have sent in interrupted rounds.
    """

    def __init__(self) -> None:
        self.owing: set[int] = set()
        self._lost: dict[int, tuple[int, float]] = {}
        """By client, the number of charges for unfinished rounds, and the epsilon they added."""
        self._once = SeenKeys()

    def note_interrupted(self, clients: Collection[int]) -> None:
        """Note that these clients, and no others, may have sent something in interrupted rounds."""
        self.owing = set(clients)

    def charge(
        self,
        client: int,
        ledger: Ledger,
        data_position: DataPosition,
        shares: Sequence[Share | None],
        delta: float,
    ) -> None:
        """Charge all earlier attempts with the noise of a batch, whether it is then sent or not.

        The server does not know which records they had, so all pay. Without a share there is no
        price, and attempts of known length are owed until the next batch.

        Parameters
        ----------
        ledger, data_position
            The client's.
        shares
            The batch's share of each pass; None for a pass in which it has none.
        delta
            Delta of the epsilon in the warning.
        """
        if data_position.forget_unknown():
            ledger.charge(Exposure("attempts"))
        size = (data_position.tokens, data_position.width)
        if releases := earlier_releases(shares, *size, data_position.earlier_times):
            before = ledger.epsilon(delta)
            ledger.charge_each(*releases)
            self._note_lost(client, before, ledger.epsilon(delta), delta)
            data_position.earlier = []
        if not data_position.earlier:
            self.owing.discard(client)

    def _note_lost(self, client: int, before: float, epsilon: float, delta: float) -> None:
        """Warn once if unfinished rounds may account for most of a client's epsilon.

        Parameters
        ----------
        before, epsilon
            Its epsilon before and after the charge for the last of them.
        """
        rounds, lost = self._lost.get(client, (0, 0.0))
        self._lost[client] = rounds, lost = rounds + 1, lost + (epsilon - before)
        if (
            rounds >= _SEVERAL
            and math.isfinite(epsilon)
            and lost > epsilon / 2
            and self._once.add("lost")
        ):
            log.warning(
                "client %d does not finish its rounds, and what it may have sent in them is more "
                "than half of its epsilon (%s of %s at delta %g): each further one adds to it, so "
                "find out why it fails, or leave it out",
                client,
                epsilon_text(lost),
                epsilon_text(epsilon),
                delta,
            )
