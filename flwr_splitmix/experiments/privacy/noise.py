"""How much noise a row has: as much as leaves its utility at another row's (images: CutMixSL's)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from flwr_splitmix.experiments.cells import as_options
from flwr_splitmix.experiments.privacy.cells import Place
from flwr_splitmix.experiments.privacy.kinds import AnyRow
from flwr_splitmix.experiments.privacy.rows import Row
from flwr_splitmix.storage import write_json

LADDER: dict[str, tuple[float, ...]] = {
    "smoke": (0.5,),
    "cpu": (0.1, 0.2, 0.4, 0.8, 1.6),
    "paper": (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2),
}
"""Standard deviations that are tried, by scale, in units of the smashed data."""

TOLERANCE = 0.02
"""By how much utility, a fraction, may be below the other row's: what a test set can tell."""


def with_noise(row: Row, sigma: float) -> Row:
    """Return a row with the noise that was found for it."""
    return replace(row, options=as_options({**dict(row.options), "sigma_s": sigma}))


def resolved(row: Row, place: Place) -> Row:
    """Return a row as it is run: one of equal utility with the noise that was found for it."""
    if not row.equal_utility:
        return row
    return with_noise(row, chosen_noise(row, place, "sigma_s"))


def find_noise(row: Row, place: Place, target: float, accuracy: Callable[[Row], float]) -> float:
    """Find a row's standard deviation, as `climb` does.

    Parameters
    ----------
    target
        Top-1 of CutMixSL.
    accuracy
        Trains a row and returns its top-1.
    """
    ladder = LADDER[place.size.name]
    return climb(
        row, place, "sigma_s", ladder, target, lambda sigma: accuracy(with_noise(row, sigma))
    )


def climb(
    row: AnyRow,
    place: Place,
    knob: str,
    ladder: Sequence[float],
    target: float,
    utility: Callable[[float], float],
) -> float:
    """Try more and more noise, and write down the most at which the row is useful enough.

    If none is, it is the least of all: there is no row without noise here.

    Parameters
    ----------
    knob
        The option that says how much noise there is.
    ladder
        Its values, from the least noise to the most.
    target
        Utility of the row that this one is brought to.
    utility
        Trains the row with a value of the option, and returns its utility.
    """
    tried: dict[float, float] = {}
    chosen = ladder[0]
    for value in ladder:
        tried[value] = utility(value)
        if tried[value] < target - TOLERANCE:
            break
        chosen = value
    write_json(
        place.noise(row),
        {
            "row": row.name,
            knob: chosen,
            "target": target,
            "tolerance": TOLERANCE,
            "tried": {str(value): reached for value, reached in tried.items()},
        },
    )
    return chosen


def chosen_noise(row: AnyRow, place: Place, knob: str) -> float:
    """Return what `climb` has written down for a row."""
    return float(json.loads(place.noise(row).read_text())[knob])
