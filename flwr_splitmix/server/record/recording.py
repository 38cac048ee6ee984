"""Facts about a strategy's shape for the records of its runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recording:
    """Facts that are the same for all runs of a strategy and follow from its options.

    Parameters
    ----------
    labels
        Labels that an unmixed upload has for each sample; see `Metrics`.
    mixtures
        Whether the ledger at the server counts mixtures, not each upload.
    protection
        A digest of the mixer and the noise of uploads; see `UnfinishedRounds`.
    """

    labels: int = 1
    mixtures: bool = False
    protection: str | None = ""
