"""What a strategy's shape tells the record of its runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recording:
    """What is the same for all runs of a strategy, and known once its options are.

    Parameters
    ----------
    labels
        Labels that an unmixed upload has for each sample; see `Metrics`.
    mixtures
        Whether the ledger at the server counts mixtures, not each upload.
    protection
        What stands for the mixer and the noise of what is sent; see `UnfinishedRounds`.
    """

    labels: int = 1
    mixtures: bool = False
    protection: str | None = ""
