"""The privacy ledger of a run mixed by a third party, as reported by the mixer's own ledger."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from flwr_splitmix.events import RoundBegun, RoundDone, RoundsMissed
from flwr_splitmix.observers.ledger import warn_of_missed
from flwr_splitmix.observers.observer import Observer
from flwr_splitmix.privacy import Relation, RunAccount
from flwr_splitmix.privacy.accountant import check_delta
from flwr_splitmix.privacy.events import UNBOUNDED, check_relation
from flwr_splitmix.privacy.statement import in_words
from flwr_splitmix.seen_keys import SeenKeys

log = logging.getLogger("flwr.splitmix")


class LedgerElsewhere(Observer):
    """Shows the largest epsilon of any client, as reported by the mixer after each round.

    Only the mixer knows what each client has spent, and does not name the client of its report.
    It keeps its ledger in memory: once a round has begun that the newest account lacks, epsilon is
    infinite, since what was sent in that round is unknown. It is infinite, too, after rounds of
    the run without noise, or with a ledger kept by the server.

    Parameters
    ----------
    delta
        Delta of the (epsilon, delta) requested from the mixer.
    relation
        Relation of neighbouring data sets, as in `PrivacyLedger`.

    Raises
    ------
    ValueError
        If delta is not strictly between 0 and 1, or the relation is unknown.
    """

    replaces = frozenset({"epsilon"})

    def __init__(self, delta: float = 1e-5, *, relation: Relation = "replace") -> None:
        check_delta(delta)
        check_relation(relation)
        self.delta = delta
        self.relation: Relation = relation
        self._begun: set[int] = set()
        self._missed = False
        self._account: RunAccount | None = None
        self._logged_words: tuple[str, ...] = ()
        self._once = SeenKeys()

    @property
    def asked(self) -> dict[str, Any]:
        """The settings of the ledger requested from the mixer, as plain values."""
        return {"delta": self.delta, "relation": self.relation}

    def receive_account(self, account: RunAccount) -> None:
        """Store the account that the mixer sends after the last step of a round."""
        self._account = account

    @property
    def unknown(self) -> tuple[int, ...]:
        """Rounds that have begun and are not in the mixer's newest account, sorted."""
        account_rounds = frozenset[int]() if self._account is None else self._account.rounds
        return tuple(sorted(self._begun - account_rounds))

    @property
    def epsilon(self) -> float:
        """Largest epsilon of any client at `delta`; infinite if no bound is known."""
        if self.unknown or self._missed:
            return math.inf
        return 0.0 if self._account is None else self._account.epsilon

    def report(self) -> str:
        """State the largest epsilon of any client, and what it does not cover."""
        if not (self._begun or self._missed):
            return "nothing was released"
        because, outside = self._words()
        statement = in_words(self.epsilon, self.delta, self.relation, because, outside)
        return f"the client that spent most, by the mixer's ledger, of mixtures alone: {statement}"

    def _words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        account = self._account
        because = () if account is None else account.unbounded_because
        outside = () if account is None else account.outside
        if self._missed:
            because = (UNBOUNDED["missed"], *because)
        if unknown := self.unknown:
            named = f"{'round' if len(unknown) == 1 else 'rounds'} {_ranges(unknown)}"
            missing = (
                f"the mixer's ledger lacks {named}; a mixer that is started again begins a new one"
            )
            return (missing, *because), outside
        return because, outside

    def on_missed(self, event: RoundsMissed) -> None:
        """Record that clients have made uploads that no mixer has counted."""
        self._missed = True
        self._once.add("unbounded")
        warn_of_missed(event.rounds)

    def on_begin(self, event: RoundBegun) -> None:
        """Record that nodes may upload from now on."""
        self._begun.add(event.server_round)

    def on_round(self, event: RoundDone) -> None:
        """Log the report whenever the part that no number covers changes.

        The first report without an epsilon is a warning.
        """
        because, outside = self._words()
        if because + outside != self._logged_words:
            self._logged_words = because + outside
            warns = because and self._once.add("unbounded")
            log.log(logging.WARNING if warns else logging.INFO, "privacy of %s", self.report())

    def facts(self) -> Mapping[str, Any]:
        """Return "privacy", the text of `report`, and the "epsilon" of all rounds begun."""
        epsilon = self.epsilon
        return {
            "privacy": self.report(),
            "epsilon": epsilon if math.isfinite(epsilon) else "inf",
        }

    def state(self) -> dict[str, Any]:
        """Return the rounds begun and the newest account."""
        account = self._account
        plain = None if account is None else account.to_plain()
        if plain is not None and math.isinf(plain["epsilon"]):
            plain["epsilon"] = "inf"
        return {
            "begun": sorted(self._begun),
            "account": plain,
            "missed": self._missed,
            "relation": self.relation,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises
        ------
        ValueError
            If it has another relation.
        """
        began = state["relation"]
        if began != self.relation:
            raise ValueError(
                f"a ledger of relation {self.relation!r} cannot take a state of relation {began!r}"
            )
        plain = state["account"]
        if plain is not None:
            plain = {**plain, "epsilon": float(plain["epsilon"])}
        self._account = None if plain is None else RunAccount.from_plain(plain)
        self._begun = set(state["begun"])
        self._missed = bool(state["missed"])


def _ranges(numbers: Iterable[int]) -> str:
    """Return sorted numbers as text: "1, 3 to 7"."""
    parts = []
    for _, run in groupby(enumerate(numbers), key=lambda place: place[1] - place[0]):
        of_run = [number for _, number in run]
        first, last = of_run[0], of_run[-1]
        parts.append(str(first) if first == last else f"{first} to {last}")
    return ", ".join(parts)
