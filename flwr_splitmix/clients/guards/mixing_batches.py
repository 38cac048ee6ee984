"""A trial of whether a data set's own `batch` lets an example change others of its batch."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.data.examples import Example, ExampleSet, fetch, makes_batches
from flwr_splitmix.overriding import of_package
from flwr_splitmix.seeding import seeded_draws, seeded_secrets
from flwr_splitmix.segments.across_batch import warn_of_inconclusive_trial
from flwr_splitmix.segments.trials import agree

MIXING = "its data set's method batch(indices), which mixes examples"
"""How messages name a data set that mixes examples."""

_MAX_ROWS, _MAX_REPLACEMENTS = 4, 6
"""Most examples of a batch in a trial, and most that are put into a place of it."""


class BatchMethodTrial:
    """The trial of a data set's own `batch`; it is made once, and its verdict stays.

    Parameters
    ----------
    data
        The data set.
    size
        Examples in a training batch.
    """

    def __init__(self, data: ExampleSet, size: int) -> None:
        self._data, self._size = data, size
        self._mixing: str | None = None
        self._inconclusive_because = ""

    def find(self) -> str:
        """Return `MIXING` if examples were seen to change each other, else ""."""
        if self._mixing is None:
            self._mixing, self._inconclusive_because = mixing_batch(self._data, self._size)
        return self._mixing

    def warn_of_inconclusive_trial(self) -> None:
        """Log, once, that the trial was made and is inconclusive, if so."""
        if self._inconclusive_because:
            warn_of_inconclusive_trial(
                f"batch of the data set {type(self._data).__name__}", self._inconclusive_because
            )
            self._inconclusive_because = ""


def mixing_batch(data: ExampleSet, size: int) -> tuple[str, str]:
    """Try whether an example changes what a data set's `batch` makes of others.

    Two batches differ in one example, and are made with the same random draws: all other rows must
    be the same, but for rounding. A replacement shows nothing if it gives the batch another shape,
    as texts are padded to the longest and no epsilon covers lengths, or if other random numbers
    follow it, as then the other rows had other draws. Not tried are data sets of this package,
    those without a `batch`, and those with a false attribute `across_batch`. Random generators of
    torch, NumPy and Python are left as they were.

    Parameters
    ----------
    size
        Examples in a training batch.

    Returns
    -------
    `MIXING` if it does, else ""; and why the trial is inconclusive, "" if it is not.
    """
    is_of_package = of_package(type(data))
    number = len(data)  # type: ignore[arg-type]
    if is_of_package or not makes_batches(data) or min(size, number) < 2:
        return "", ""
    if getattr(data, "across_batch", None) is False:
        return "", ""
    count = min(size, number, _MAX_ROWS)
    # With a gap after each, so that another one leaves the order of the indices as it is.
    rows = np.arange(count) * (2 if number >= 2 * count else 1)
    try:
        return _try_batches(data, rows)  # type: ignore[arg-type]
    except Exception as error:  # its text may quote the data
        return "", f"it fails with a {type(error).__name__}"


def _try_batches(data: ExampleSet, rows: np.ndarray) -> tuple[str, str]:
    before, drawn = _drawn_batch(data, rows)
    if not _alike(before, _drawn_batch(data, rows)[0]):
        return "", "it draws random numbers that are not seeded, or counts its calls"
    depends = fits = False
    for place in range(len(rows)):
        others = torch.arange(len(rows)) != place
        for after, drawn_after in _replaced(data, rows, place):
            if after[0].shape != before[0].shape or _same(after, before, place):
                continue
            if drawn_after != drawn:
                depends = True
                continue
            if not _alike(before, after, others):
                return MIXING, ""
            fits = True
            break
    if depends:
        return "", "how many random numbers it draws depends on the examples"
    return "", "" if fits else "no other example fits into the place of one"


def _replaced(
    data: ExampleSet, rows: np.ndarray, place: int
) -> Iterator[tuple[Example, tuple[float, ...]]]:
    """Yield batches with another example at `place`, if possible one that the batch lacks."""
    number = len(data)  # type: ignore[arg-type]
    candidates = (rows[place] + 1 + np.arange(min(_MAX_REPLACEMENTS, number - 1))) % number
    fresh = candidates[~np.isin(candidates, rows)]
    for candidate in fresh if len(fresh) else candidates:
        replaced = rows.copy()
        replaced[place] = candidate
        yield _drawn_batch(data, replaced)


def _drawn_batch(data: ExampleSet, rows: np.ndarray) -> tuple[Example, tuple[float, ...]]:
    """Return a batch, and the numbers that random generators give next."""
    with seeded_draws(torch.device("cpu"), 0), seeded_secrets():
        inputs, labels = fetch(data, rows, floats=True)
        # Normal ones, too: generators keep every second of these for the next call.
        drawn = (
            *(float(torch.randn(())), float(torch.rand(()))),
            *(float(np.random.standard_normal()), float(np.random.random_sample())),
            *(random.gauss(0.0, 1.0), random.random()),
        )
    return (inputs.clone(), labels.clone()), drawn  # they may be buffers of the data set's


def _same(one: Example, other: Example, place: int) -> bool:
    return torch.equal(one[0][place], other[0][place])


def _alike(one: Example, other: Example, chosen: Tensor | None = None) -> bool:
    """Return whether two batches agree in the rows that are chosen, bool (b,), or in all."""
    pairs = zip(one, other, strict=True)
    if chosen is None:
        return all(agree(*pair) for pair in pairs)
    return all(a.shape == b.shape and agree(a[chosen], b[chosen]) for a, b in pairs)
