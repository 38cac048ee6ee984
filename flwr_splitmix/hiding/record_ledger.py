"""The privacy cost of a client's Gaussian releases to its training and test examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flwr_splitmix.hiding.exchanged import ClientSide
from flwr_splitmix.privacy.analytic import gaussian_epsilon
from flwr_splitmix.privacy.client_ledger import ClientLedger
from flwr_splitmix.privacy.covering_noise import CoveringNoise
from flwr_splitmix.privacy.events import Channel, Exposure
from flwr_splitmix.privacy.ledger import Charge, Ledger
from flwr_splitmix.privacy.statement import Statement
from flwr_splitmix.seeding import secrets_are_seeded

PUBLIC = frozenset({"benchmark"})
"""Kinds of examples that belong to no client."""


def as_releases(copies: Any, power: int) -> Any:
    """Return as how many releases an example counts that is in a batch so many times.

    Parameters
    ----------
    power
        1 if each copy is sent by itself, 2 if their sum is, which they move as many times as far.
    """
    return copies**power


class RecordLedger:
    """One exact ledger per kind of examples; epsilon is that of the ledger that has spent most.

    Neighbouring inputs differ by one replaced example. Releases are Gaussian and nothing is
    sampled, so their composition is one Gaussian release, whose epsilon is exact.

    Parameters
    ----------
    kinds
        The kinds that are counted: "train", and kinds of evaluation; None counts all but public
        ones.
    """

    def __init__(self, kinds: frozenset[str] | None = None) -> None:
        self._kinds = kinds
        self._ledgers: dict[str, Ledger] = {}
        self._numbers: dict[str, int] = {}
        self._seeded = False
        self._owed: tuple[ClientSide, CoveringNoise, int] | None = None

    def begin_round(self, side: ClientSide, noise: CoveringNoise, power: int = 1) -> None:
        """Begin a round of a client, in which it may owe what earlier attempts have sent.

        That is charged with the first training examples, or by `pay_owed`.

        Parameters
        ----------
        noise, power
            As for `charge`, of what they have sent.

        Raises
        ------
        ValueError
            If an existing ledger is of another number of examples.
        """
        self.open(side.examples, seeded=side.seeded)
        self._owed = side, noise, power

    def pay_owed(self) -> None:
        """Charge, once in a round, what earlier attempts at it may have sent."""
        if self._owed is not None:
            owed, self._owed = self._owed, None
            self.charge_earlier(*owed)

    def open(self, examples: Mapping[str, int], *, seeded: bool = False) -> None:
        """Begin a round; existing ledgers continue.

        Parameters
        ----------
        examples
            How many there are of each kind.
        seeded
            Whether what is charged has noise that counts as none, as whoever gets it knows its
            seed.

        Raises
        ------
        ValueError
            If an existing ledger is of another number of examples.
        """
        self._seeded = seeded
        for kind, number in examples.items():
            counted = kind not in PUBLIC if self._kinds is None else kind in self._kinds
            if counted and number:
                self._open(kind, number)

    def _open(self, kind: str, number: int) -> None:
        before = self._numbers.setdefault(kind, number)
        if before != number:
            raise ValueError(f"the ledger of {kind} examples is for {before}, but got {number}")
        if kind not in self._ledgers:
            self._ledgers[kind] = ClientLedger("replace", number)

    def charge(
        self,
        kind: str,
        records: np.ndarray,
        noise: CoveringNoise,
        *,
        attempt: int = 0,
        outside: Sequence[Channel] = (),
        power: int = 1,
    ) -> None:
        """Charge a release about some examples.

        Parameters
        ----------
        records
            int64 (b,): indices of examples of the kind.
        noise
            The release's noise. Below the resolution of float32 next to what it must hide, it
            leaves no epsilon.
        attempt
            How often it may have been made before, each time with other noise.
        outside
            Disclosures with it that are not counted: keys of `privacy.events.OUTSIDE_IN_U_SHAPE`.
        power
            How examples pay that are among the records several times; see `as_releases`.
        """
        if kind == "train":
            self.pay_owed()
        if kind not in self._ledgers:
            return
        times = 1 if secrets_are_seeded() else 1 + attempt
        shift = noise.shift
        cost = times * shift * shift / 2
        ledger = self._ledgers[kind]
        reasons = {"seeded": self._seeded, "resolution": math.isinf(shift)}
        notes = (*outside, *(reason for reason, holds in reasons.items() if holds))
        ledger.post(Charge(notes=notes, count=times))
        examples, copies = np.unique(records, return_counts=True)
        for number in np.unique(copies).tolist():
            of_these = Charge((cost * as_releases(number, power), 0.0))
            ledger.post(of_these, records=examples[copies == number])

    def note(self, *outside: Channel) -> None:
        """State what has left uncounted that depends on training examples, without a release.

        Parameters
        ----------
        outside
            Keys of `privacy.events.OUTSIDE_IN_U_SHAPE`.
        """
        if "train" in self._ledgers:
            self._ledgers["train"].post(Charge(notes=outside))

    def charge_earlier(
        self,
        side: ClientSide,
        noise: CoveringNoise,
        power: int = 1,
    ) -> None:
        """Charge training examples that may have been sent before, each time with other noise.

        Parameters
        ----------
        side
            The client in its round; its `earlier` has the examples.
        noise, power
            As for `charge`.
        """
        if secrets_are_seeded():
            return
        if (ledger := self._ledgers.get("train")) is None:
            return
        number = self._numbers["train"]
        times = np.zeros(number, dtype=np.int64)
        for records in side.earlier:
            times += as_releases(np.bincount(records, minlength=number), power)
        for each in np.unique(times[times > 0]).tolist():
            self.charge("train", np.flatnonzero(times == each), noise, attempt=each - 1)
        if side.uncounted:
            ledger.charge(Exposure("attempts"))

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of the example that spent most."""
        return max((exact_epsilon(ledger, delta) for ledger in self._ledgers.values()), default=0.0)

    def statement(self, delta: float) -> Statement:
        """Return epsilon with its explanations, for all kinds of examples.

        Raises
        ------
        RuntimeError
            If no round has begun yet.
        """
        if not self._ledgers:
            raise RuntimeError("no round has begun, so there is no ledger")
        worst = max(self._ledgers.values(), key=lambda ledger: exact_epsilon(ledger, delta))
        epsilon = exact_epsilon(worst, delta)
        outside = (
            word for ledger in self._ledgers.values() for word in ledger.statement(delta).outside
        )
        return replace(
            worst.statement(delta),
            epsilon=epsilon,
            smashed=epsilon,
            order=None,
            outside=tuple(dict.fromkeys(outside)),
        )

    def state(self) -> dict[str, Any]:
        """Return all ledgers as JSON values."""
        return {kind: ledger.state_dict() for kind, ledger in self._ledgers.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, for the same examples.

        Kinds that this round has no examples of, as on a node that lacks its test set, count on.

        Raises
        ------
        ValueError
            If the number of examples differs, or the state is damaged.
        """
        for kind, ledger_state in state.items():
            if kind not in self._ledgers:
                self._open(kind, _number_of_examples(kind, ledger_state))
            self._ledgers[kind].load_state_dict(ledger_state)


def _number_of_examples(kind: str, state: Any) -> int:
    try:
        return len(state["book"]["smashed"])
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"the state of the ledger of {kind} examples is damaged: {error!r}"
        ) from None


def exact_epsilon(ledger: Ledger, delta: float) -> float:
    """Return the exact epsilon of a ledger of Gaussian releases, not via Rényi orders."""
    if not ledger.bounded:
        return math.inf
    return gaussian_epsilon(delta, math.sqrt(2 * float(ledger.spent()[2])))
