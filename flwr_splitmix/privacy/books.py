"""The spending of one client's records: worst case per pass, or record by record.

Both hold slopes (see `costs`) for the smashed data, the labels, and in total. The worst total is
not the sum of the other two, which may be those of different records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


class Book(Protocol):
    """Sums the costs of releases; `spent` is the maximum over records."""

    def charge(self, costs: Floats, epochs: NDArray[np.int64], records: ArrayLike | None) -> None:
        """Charge steps, each with one batch.

        Parameters
        ----------
        costs
            (steps, 2): slopes for smashed data and labels.
        epochs
            (steps,): number of the pass over the data that each batch belongs to.
        records
            (steps, b): the records of each batch.
        """

    def charge_all_per_channel(self, costs: Floats) -> None:
        """Charge every record a slope of its own for smashed data and for labels (2,)."""

    def charge_all_one_total(self, rho: float) -> None:
        """Charge every record one total slope, of which the channels' parts are not known.

        It is added to the slope of each channel, and once to the total.
        """

    def spent(self) -> Floats:
        """Return the worst slopes (3,): smashed data, labels, total."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as values that JSON has."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state exactly; raise ValueError if it belongs to another kind."""


class PassBook:
    """Needs no records: a pass costs its worst batch, as its batches are disjoint; passes add up.

    A pass that starts over, or draws a record twice, must be counted as a new one.
    """

    def __init__(self) -> None:
        self._before = np.zeros(3)
        self._worst = np.zeros(3)
        self._epoch = 0

    def charge(self, costs: Floats, epochs: NDArray[np.int64], records: ArrayLike | None) -> None:
        """See `Book.charge`; `records` is not needed. Raise ValueError for an earlier pass."""
        following = np.concatenate([[self._epoch], epochs])
        if (np.diff(following) < 0).any():
            at = int(np.diff(following).argmin())
            raise ValueError(
                f"epoch is {following[at + 1]} after {following[at]}; a pass over the data that "
                "starts over needs a new number"
            )
        if not len(costs):
            return
        total = np.concatenate([costs, costs.sum(axis=1, keepdims=True)], axis=1)
        starts = np.flatnonzero(np.diff(epochs, prepend=epochs[0] - 1))
        worst = np.maximum.reduceat(total, starts, axis=0)
        if epochs[0] == self._epoch:
            worst[0] = np.maximum(worst[0], self._worst)
        else:
            self._before += self._worst
        self._before += worst[:-1].sum(axis=0)
        self._worst = worst[-1]
        self._epoch = int(epochs[-1])

    def charge_all_per_channel(self, costs: Floats) -> None:
        """See `Book.charge_all_per_channel`; this is charged beside the passes."""
        self._before += [*costs, costs.sum()]

    def charge_all_one_total(self, rho: float) -> None:
        """See `Book.charge_all_one_total`."""
        self._before += rho

    def spent(self) -> Floats:
        """Return the worst slopes."""
        spent: Floats = self._before + self._worst
        return spent

    def state_dict(self) -> dict[str, Any]:
        """Return the state as values that JSON has."""
        return {
            "kind": "passes",
            "epoch": self._epoch,
            "before": _plain(self._before),
            "worst": _plain(self._worst),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it exactly."""
        _check_kind(state, "passes")
        self._epoch = int(state["epoch"])
        self._before, self._worst = (_floats(state[name], (3,)) for name in ("before", "worst"))


class RecordBook:
    """Exact: every record pays for the batches that it was in. Needs to know the batches.

    Parameters
    ----------
    records
        Number of records of the client.
    """

    def __init__(self, records: int) -> None:
        if records < 1:
            raise ValueError(f"records is {records}; a client has at least 1")
        self._spent = np.zeros((2, records))
        self._everywhere = 0.0

    def charge(self, costs: Floats, epochs: NDArray[np.int64], records: ArrayLike | None) -> None:
        """See `Book.charge`; `epochs` are not needed. Raise ValueError without valid records."""
        count = self._spent.shape[1]
        if records is None:
            raise ValueError("an exact ledger needs the records of each batch")
        batches = np.asarray(records)
        if batches.ndim != 2 or len(batches) != len(costs) or batches.dtype.kind not in "iu":
            raise ValueError(
                f"records are {batches.dtype} {batches.shape}; a batch's records are integers, "
                f"one row for each of {len(costs)} steps"
            )
        if batches.size and not 0 <= batches.min() <= batches.max() < count:
            raise ValueError(
                f"records are {batches.min()} to {batches.max()}; the client has 0 to {count - 1}"
            )
        flat, size = batches.ravel(), batches.shape[1]
        for part, cost in zip(self._spent, costs.T, strict=True):
            part += np.bincount(flat, np.repeat(cost, size), minlength=count)

    def charge_all_per_channel(self, costs: Floats) -> None:
        """See `Book.charge_all_per_channel`."""
        self._spent += costs[:, None]

    def charge_all_one_total(self, rho: float) -> None:
        """See `Book.charge_all_one_total`."""
        self._everywhere += rho

    def spent(self) -> Floats:
        """Return the worst slopes: each the maximum over the records."""
        smashed, labels = self._spent
        worst = (smashed.max(), labels.max(), (smashed + labels).max())
        return np.array(worst) + self._everywhere

    def state_dict(self) -> dict[str, Any]:
        """Return the state as values that JSON has."""
        smashed, labels = map(_plain, self._spent)
        (everywhere,) = _plain([self._everywhere])
        return {
            "kind": "records",
            "everywhere": everywhere,
            "smashed": smashed,
            "labels": labels,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it exactly."""
        _check_kind(state, "records")
        (everywhere,) = _floats([state["everywhere"]], (1,))
        shape = self._spent.shape[1:]
        self._spent = np.stack([_floats(state[name], shape) for name in ("smashed", "labels")])
        self._everywhere = float(everywhere)


def _plain(values: Iterable[float]) -> list[float | str]:
    """Return floats, which JSON represents exactly, with infinity as text."""
    return [float(v) if np.isfinite(v) else str(v) for v in values]


def _floats(values: Any, shape: tuple[int, ...]) -> Floats:
    array = np.array([float(v) for v in values])
    if array.shape != shape:
        raise ValueError(f"a ledger of {shape[0]} values cannot take a state of {len(array)}")
    if not (array >= 0).all():  # nor NaN, which no budget would ever stop
        raise ValueError("a ledger's state has costs that are not numbers of at least 0")
    return array


def _check_kind(state: Mapping[str, Any], kind: str) -> None:
    if state.get("kind") != kind:
        raise ValueError(f"a ledger by {kind} cannot take a state by {state.get('kind')}")
