"""The charges of a hiding's ledger in a run that has not begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flwr_splitmix.privacy.covering_noise import CoveringNoise
from flwr_splitmix.privacy.events import Channel


@dataclass(frozen=True, kw_only=True)
class PlannedClient:
    """A client's part in a run, as far as it is known before the run begins.

    Attributes
    ----------
    batch_size
        Records in a training batch.
    head_learns
        Whether the head learns from the client's records.
    returns
        Whether gradients are returned to the trunk.
    averaged
        Whether head and tail leave the client.
    padded
        Whether masks tell the lengths of texts.
    scored
        Whether clients report scores, of whatever test records.
    tested
        How often an evaluation over the link sends a client's own test record, at most.
    """

    batch_size: int
    head_learns: bool
    returns: bool
    averaged: bool
    padded: bool
    scored: bool
    tested: int


@dataclass(frozen=True, kw_only=True)
class Charges:
    """The charges of a ledger for each step and each evaluation.

    Attributes
    ----------
    delta
        Delta of the epsilon.
    noise
        The noise on what leaves about a record.
    power
        As what copies of a record in a batch count; see `record_ledger.as_releases`.
    tested
        Releases of a client's own test record in each evaluation, at most; 0 if none are charged.
    outside
        Disclosures that the epsilon does not cover: keys of `privacy.events.OUTSIDE_IN_U_SHAPE`.
    """

    delta: float
    noise: CoveringNoise
    power: int = 1
    tested: int = 0
    outside: Sequence[Channel] = ()
