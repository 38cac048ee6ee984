"""One client's ledger: its releases, their cost, and what epsilon does not cover."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flwr_splitmix.privacy.accountant import (
    check_delta,
    delta_from_rdp,
    epsilon_from_rdp,
    rdp_curve,
)
from flwr_splitmix.privacy.books import Book, PassBook, RecordBook
from flwr_splitmix.privacy.costs import Floats, release_costs
from flwr_splitmix.privacy.events import (
    OUTSIDE,
    OUTSIDE_IN_U_SHAPE,
    UNBOUNDED,
    WITHOUT_NOISE,
    Event,
    Exposure,
    Gaussian,
    Relation,
    Release,
    check_relation,
)
from flwr_splitmix.privacy.statement import Statement

_VERSION = 1

_OUTSIDE = {**OUTSIDE, **OUTSIDE_IN_U_SHAPE}


@dataclass(frozen=True)
class Charge:
    """The cost of the releases about one batch.

    Parameters
    ----------
    batch
        Slopes for smashed data and labels, charged to each record of the batch; None charges no
        particular record.
    everywhere
        Slope charged to every record of the client.
    notes
        What is not quantified: keys of `UNBOUNDED`, `OUTSIDE` and `OUTSIDE_IN_U_SHAPE`. Any other,
        from a file of another version, makes epsilon infinite.
    count
        Number of releases.
    """

    batch: tuple[float, float] | None = None
    everywhere: float = 0.0
    notes: tuple[str, ...] = ()
    count: int = 0


class Ledger:
    """Sums up the releases of one client.

    Parameters
    ----------
    relation
        How neighbouring inputs differ: "replace" (a record is replaced by another) or "add-remove"
        (by an empty one).
    records
        The client's number of records, for an exact ledger, which charges every record for the
        batches that it was in. None charges each pass over the data with its worst batch, which
        needs no records and never gives less.
    """

    def __init__(self, relation: Relation = "replace", records: int | None = None) -> None:
        check_relation(relation)
        self.relation: Relation = relation
        self._book: Book = PassBook() if records is None else RecordBook(records)
        self._notes: dict[str, None] = {}
        self._releases = 0

    @property
    def releases(self) -> int:
        """Number of releases charged."""
        return self._releases

    def charge(self, *events: Event, epoch: int = 0, records: ArrayLike | None = None) -> None:
        """Charge releases that were sent together about one batch.

        Call this when bytes are sent, even if the server then rejects them, and with all releases
        of the batch at once: they are summed before batches are compared.

        Parameters
        ----------
        epoch
            Number of the pass over the data that the batch belongs to. It must not decrease, and a
            pass that starts over needs a new number.
        records
            Indices (b,) of the batch's records; an exact ledger needs them.

        Raises
        ------
        TypeError
            If an event is not understood; nothing is charged then.
        ValueError
            If the epoch decreases, or an exact ledger gets no valid records; nothing is charged.
        """
        self.post(self.price(*events), epoch=epoch, records=records)

    def price(self, *events: Event) -> Charge:
        """Return the cost of sending `events` together about one batch.

        Raises
        ------
        TypeError
            If an event is not understood.
        """
        costs, everywhere, count = np.zeros(2), 0.0, 0
        notes: list[str] = []
        for event in events:
            if isinstance(event, Release):
                cost = release_costs(event, self.relation)
                costs = costs + cost
                notes += event.gaps or _unresolved(cost)
                count += event.times
            elif isinstance(event, Gaussian):
                shift = 1 / event.noise_multiplier  # before squaring, which may underflow
                everywhere += event.times * (shift * shift) / 2
                count += event.times
            elif isinstance(event, Exposure):
                notes.append(event.channel)
            else:
                raise TypeError(
                    f"{type(event).__name__} is not an event that the ledger understands; "
                    "those are Release, Gaussian and Exposure"
                )
        batch = any(isinstance(event, Release) for event in events)
        smashed, labels = costs.tolist()
        return Charge((smashed, labels) if batch else None, everywhere, tuple(notes), count)

    def post(self, charge: Charge, *, epoch: int = 0, records: ArrayLike | None = None) -> None:
        """Charge what `price` returned; parameters and errors as for `charge`."""
        if charge.batch is not None:
            rows = None if records is None else np.asarray(records)[None]
            self._book.charge(np.array(charge.batch)[None], np.array([epoch]), rows)
        self._book.charge_all_one_total(charge.everywhere)
        self._notes.update(dict.fromkeys(charge.notes))
        self._releases += charge.count

    def charge_each(self, *events: Event) -> None:
        """Charge releases that were sent together about every record, beside the passes.

        Raises
        ------
        TypeError
            If an event is not understood; nothing is charged then.
        """
        charge = self.price(*events)
        if charge.batch is not None:
            self._book.charge_all_per_channel(np.array(charge.batch))
        self.post(replace(charge, batch=None))

    def charge_series(
        self,
        release: Release,
        ratios: ArrayLike,
        *,
        epochs: ArrayLike,
        groups: ArrayLike | None = None,
        records: ArrayLike | None = None,
    ) -> None:
        """Charge many batches at once whose releases differ only in their masks.

        Parameters
        ----------
        release
            The values that they have in common; its ratio is not used.
        ratios, epochs
            (steps,): the client's ratio in each step, and the pass that its batch belongs to.
        groups
            (steps, k): all members' ratios, for releases seen as a sum.
        records
            (steps, b): each batch's records; an exact ledger needs them.

        Raises
        ------
        ValueError
            As for `charge`, or if a ratio is not in 0..1 or lengths differ; nothing is charged.
        """
        m = np.asarray(ratios, dtype=np.float64)
        passes = np.asarray(epochs, dtype=np.int64)
        if m.shape != passes.shape or m.ndim != 1:
            raise ValueError(f"ratios are {m.shape} and epochs {passes.shape}; both are (steps,)")
        if not ((m >= 0) & (m <= 1)).all():
            raise ValueError("ratios must lie in 0..1")
        if release.seen == "sum" and release.family != "full":
            members = np.asarray([] if groups is None else groups, dtype=np.float64)
            fits = members.ndim == 2 and len(members) == len(m)
            if not (fits and (members == m[:, None]).any(axis=1).all()):
                raise ValueError(
                    "a series seen as sums needs groups (steps, k), the client's own ratio in each"
                )
        costs = release_costs(release, self.relation, m, groups)
        self._book.charge(costs, passes, records)
        if m.any():
            self._notes.update(dict.fromkeys(release.noise.gaps or _unresolved(costs)))
        self._releases += len(m) * release.times

    def statement(self, delta: float) -> Statement:
        """Return the ledger's statement at `delta`.

        Raises
        ------
        ValueError
            If delta is not strictly between 0 and 1.
        """
        check_delta(delta)
        notes = self._known_notes()
        because = tuple(words for key, words in UNBOUNDED.items() if key in notes)
        spent = self._book.spent()
        epsilons, orders = epsilon_from_rdp(rdp_curve(spent), delta)
        # If nothing is spent epsilon is 0, which no conversion gives.
        smashed, labels, total = np.where(spent > 0, epsilons, 0.0).tolist()
        if notes & {*WITHOUT_NOISE, "batch-norm"}:
            smashed = math.inf
        if notes & WITHOUT_NOISE:
            labels = math.inf
        return Statement(
            epsilon=math.inf if because else total,
            delta=delta,
            relation=self.relation,
            order=None if because or not spent[2] else float(orders[2]),
            smashed=smashed,
            labels=labels,
            unbounded_because=because,
            outside=tuple(words for key, words in _OUTSIDE.items() if key in notes),
        )

    def epsilon(self, delta: float) -> float:
        """Return `statement(delta).epsilon`."""
        return self.statement(delta).epsilon

    def delta(self, epsilon: float) -> float:
        """Return the delta at which `epsilon` holds; 1 if there is no bound.

        Raises
        ------
        ValueError
            If epsilon is negative.
        """
        delta = float(delta_from_rdp(rdp_curve(self._book.spent()[2]), epsilon))
        return delta if self.bounded else 1.0

    def would_exceed(
        self,
        *events: Event,
        max_epsilon: float,
        delta: float,
        epoch: int = 0,
        records: ArrayLike | None = None,
    ) -> bool:
        """Return whether charging `events` would bring epsilon above `max_epsilon`.

        Raises
        ------
        TypeError, ValueError
            As for `charge` and `statement`, or if `max_epsilon` is not a positive number.
        """
        if not max_epsilon > 0:
            raise ValueError(f"max_epsilon is {max_epsilon}; a budget must be above 0")
        after = copy.deepcopy(self)
        after.charge(*events, epoch=epoch, records=records)
        return after.epsilon(delta) > max_epsilon

    @property
    def bounded(self) -> bool:
        """Whether anything bounds epsilon: nothing of `UNBOUNDED` was noted."""
        return not self.unbounded

    @property
    def unbounded(self) -> tuple[str, ...]:
        """Keys of `UNBOUNDED` for why nothing bounds epsilon; empty if something does."""
        notes = self._known_notes()
        return tuple(key for key in UNBOUNDED if key in notes)

    def total(self) -> Charge:
        """Return the worst record's costs as a charge for every record, with all notes."""
        return Charge(None, float(self._book.spent()[2]), tuple(self._notes), self._releases)

    def spent(self) -> Floats:
        """Return the worst slopes (3,): smashed data, labels, total; see `costs`."""
        return self._book.spent()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values; `load_state_dict` restores it exactly."""
        return {
            "version": _VERSION,
            "relation": self.relation,
            "releases": self._releases,
            "notes": list(self._notes),
            "book": self._book.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises
        ------
        ValueError
            If it has another version, relation or kind of ledger, or is damaged; the ledger is
            then unchanged.
        """
        if state.get("version") != _VERSION:
            raise ValueError(f"a ledger's state has version {_VERSION}, not {state.get('version')}")
        if state.get("relation") != self.relation:
            raise ValueError(
                f"a ledger of relation {self.relation!r} cannot take a state of relation "
                f"{state.get('relation')!r}"
            )
        book = copy.deepcopy(self._book)
        try:
            notes = dict.fromkeys(map(str, state["notes"]))
            releases = int(state["releases"])
            book.load_state_dict(state["book"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"the ledger's state is damaged: {error!r}") from error
        self._book, self._notes, self._releases = book, notes, releases

    def _known_notes(self) -> set[str]:
        """Return the notes, with "unknown" for those of another version."""
        known_keys = {**UNBOUNDED, **_OUTSIDE}
        return {key if key in known_keys else "unknown" for key in self._notes}


def _unresolved(costs: Floats) -> tuple[str, ...]:
    """Return the reasons why releases without gaps still have no bound; empty if all have one."""
    return () if np.isfinite(costs).all() else ("resolution",)
