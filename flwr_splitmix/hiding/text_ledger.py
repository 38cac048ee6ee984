"""What a client's Gaussian releases have cost its texts: those of training, those of its tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flwr_splitmix.privacy.analytic import gaussian_epsilon
from flwr_splitmix.privacy.events import Channel
from flwr_splitmix.privacy.ledger import Charge, Ledger
from flwr_splitmix.privacy.statement import Statement
from flwr_splitmix.seeding import secrets_are_seeded

PUBLIC = frozenset({"benchmark"})
"""Kinds of texts that are nobody's own."""


class TextLedger:
    """One exact ledger for each kind of texts; epsilon is that of the text that spent most.

    Neighbouring inputs: one text is another one. Releases are Gaussian and nothing is sampled, so
    their composition is one Gaussian release, whose epsilon is exact.

    Parameters
    ----------
    kinds
        What is counted: "train", and kinds of evaluation; None counts all that is not public.
    """

    def __init__(self, kinds: frozenset[str] | None = None) -> None:
        self._kinds = kinds
        self._ledgers: dict[str, Ledger] = {}

    def open(self, examples: Mapping[str, int]) -> None:
        """Begin a round with so many texts of each kind; ledgers that there are go on."""
        for kind, number in examples.items():
            counted = kind not in PUBLIC if self._kinds is None else kind in self._kinds
            if counted and number and kind not in self._ledgers:
                self._ledgers[kind] = Ledger("replace", number)

    def charge(
        self,
        kind: str,
        records: np.ndarray,
        shift: float,
        *,
        attempt: int = 0,
        outside: Sequence[Channel] = (),
    ) -> None:
        """Charge a release about some texts.

        Parameters
        ----------
        records
            int64 (b,): which texts of the kind; each pays as often as it is there.
        shift
            The release's sensitivity in standard deviations of its noise.
        attempt
            How often it may have been made before, each time with other noise.
        outside
            What left with it and has no number: keys of `privacy.events.OUTSIDE_OF_TEXTS`.
        """
        if kind not in self._ledgers:
            return
        times = 1 if secrets_are_seeded() else 1 + attempt
        cost = times * shift * shift / 2
        self._ledgers[kind].post(Charge((cost, 0.0), 0.0, tuple(outside), times), records=records)

    def epsilon(self, delta: float) -> float:
        """Return what the text that spent most has spent."""
        return max((exact_epsilon(ledger, delta) for ledger in self._ledgers.values()), default=0.0)

    def statement(self, delta: float) -> Statement:
        """Return the number with its words.

        Raises
        ------
        RuntimeError
            Before the first round.
        """
        if not self._ledgers:
            raise RuntimeError("no round has begun, so there is no ledger")
        worst = max(self._ledgers.values(), key=lambda ledger: exact_epsilon(ledger, delta))
        epsilon = exact_epsilon(worst, delta)
        said = worst.statement(delta)
        return replace(said, epsilon=epsilon, smashed=epsilon, order=None)

    def state(self) -> dict[str, Any]:
        """Return all ledgers as values that JSON has."""
        return {kind: ledger.state_dict() for kind, ledger in self._ledgers.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; the texts are assumed to be the same.

        Raises
        ------
        ValueError
            If they are not as many.
        """
        for kind, ledger in self._ledgers.items():
            if kind in state:
                ledger.load_state_dict(state[kind])


def exact_epsilon(ledger: Ledger, delta: float) -> float:
    """Return the epsilon of a ledger of Gaussian releases, without a detour by Rényi orders."""
    return gaussian_epsilon(delta, math.sqrt(2 * float(ledger.spent()[2])))
