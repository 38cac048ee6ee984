"""A trial of whether a data set's own `batch` lets an example change others of its batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.data.batches import Example, ExampleSet, fetch, makes_batches
from flwr_splitmix.seeding import seeded_draws, seeded_secrets
from flwr_splitmix.segments.across_batch import agree, warn_of_untold

MIXING = "the data set's method batch(indices), which mixes examples"
"""What is said of a data set that does."""

_ROWS, _OTHERS = 4, 8
"""Most examples of a batch in a trial, and most that are put into a place of it."""


def mixing_batch(data: ExampleSet, size: int) -> str:
    """Return `MIXING` if an example changes what a data set's `batch` makes of others.

    Two batches differ in one example, and are made with the same random draws: all other rows must
    be the same, but for rounding. The last one is replaced first: no draw for another example comes
    after its own. A replacement by which the batch has another shape tells nothing: texts are
    padded to the longest, and no epsilon covers lengths. Data sets of this package and those
    without a `batch` keep examples apart. A log line says if it cannot be told. Random generators
    are left as they were.

    Parameters
    ----------
    size
        Examples in a training batch.

    Returns
    -------
    "" if nothing shows, or it cannot be told.
    """
    own = type(data).__module__.split(".")[0] == "flwr_splitmix"
    if own or not makes_batches(data) or min(size, len(data)) < 2:  # type: ignore[arg-type]
        return ""
    try:
        found, why = _tried(data, np.arange(min(size, _ROWS)) % len(data))  # type: ignore[arg-type]
    except Exception as error:  # its text may quote the data
        found, why = False, f"it fails with a {type(error).__name__}"
    if why:
        warn_of_untold(f"batch of the data set {type(data).__name__}", why)
    return MIXING if found else ""


def _tried(data: ExampleSet, rows: np.ndarray) -> tuple[bool, str]:
    """Return whether examples are mixed, and why that cannot be told, if so."""
    before = _made(data, rows)
    if not _alike(before, _made(data, rows)):
        return False, "it draws random numbers that are not seeded, or counts its calls"
    random = not _alike(before, _made(data, rows, seed=1))
    told = False
    last = len(rows) - 1
    for place in range(last, -1, -1):
        others = torch.arange(len(rows)) != place
        after = next(_replaced(data, rows, place, before), None)
        told |= after is not None
        if after is not None and not _alike(before, after, others):
            if random and place < last:
                return False, "its random draws for an example depend on those before it"
            return True, ""
    return False, "" if told else "no other example fits into the place of one"


def _replaced(data: ExampleSet, rows: np.ndarray, place: int, before: Example) -> Iterator[Example]:
    """Yield batches of the same shape with another example at `place`."""
    number = len(data)  # type: ignore[arg-type]
    for candidate in (rows[place] + 1 + np.arange(min(_OTHERS, number - 1))) % number:
        replaced = rows.copy()
        replaced[place] = candidate
        after = _made(data, replaced)
        if after[0].shape == before[0].shape and not torch.equal(after[0][place], before[0][place]):
            yield after


def _made(data: ExampleSet, rows: np.ndarray, seed: int = 0) -> Example:
    with seeded_draws(torch.device("cpu"), seed), seeded_secrets():
        inputs, labels = fetch(data, rows, floats=True)
    return inputs.clone(), labels.clone()  # they may be a buffer of the data set's


def _alike(one: Example, other: Example, chosen: Tensor | None = None) -> bool:
    """Return whether two batches agree in the rows that are chosen, bool (b,), or in all."""
    pairs = zip(one, other, strict=True)
    if chosen is None:
        return all(agree(*pair) for pair in pairs)
    return all(a.shape == b.shape and agree(a[chosen], b[chosen]) for a, b in pairs)
