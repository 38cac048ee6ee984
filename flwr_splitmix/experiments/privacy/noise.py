"""How much noise a row has: as much as leaves its accuracy at CutMixSL's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from flwr_splitmix.experiments.cells import as_options
from flwr_splitmix.experiments.privacy.cells import Place
from flwr_splitmix.experiments.privacy.rows import Row
from flwr_splitmix.storage import write_json

LADDER: dict[str, tuple[float, ...]] = {
    "smoke": (0.5,),
    "cpu": (0.1, 0.2, 0.4, 0.8, 1.6),
    "paper": (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2),
}
"""Standard deviations that are tried, by scale, in units of the smashed data."""

TOLERANCE = 0.02
"""By how much top-1, a fraction, may be below CutMixSL's: what a test set can tell."""


def with_noise(row: Row, sigma: float) -> Row:
    """Return a row with the noise that was found for it."""
    return replace(row, options=as_options({**dict(row.options), "sigma_s": sigma}))


def resolved(row: Row, place: Place) -> Row:
    """Return a row as it is run: one of equal utility with the noise that was found for it."""
    if not row.equal_utility:
        return row
    found = json.loads(place.noise(row).read_text())
    return with_noise(row, float(found["sigma_s"]))


def find_noise(row: Row, place: Place, target: float, accuracy: Callable[[Row], float]) -> float:
    """Try more and more noise, and write down the most at which the row is accurate enough.

    If none is, it is the least of all: there is no row without noise here.

    Parameters
    ----------
    target
        Top-1 of CutMixSL.
    accuracy
        Trains a row and returns its top-1.
    """
    tried: dict[float, float] = {}
    chosen = LADDER[place.size.name][0]
    for sigma in LADDER[place.size.name]:
        tried[sigma] = accuracy(with_noise(row, sigma))
        if tried[sigma] < target - TOLERANCE:
            break
        chosen = sigma
    write_json(
        place.noise(row),
        {
            "row": row.name,
            "sigma_s": chosen,
            "target": target,
            "tolerance": TOLERANCE,
            "tried": {str(sigma): value for sigma, value in tried.items()},
        },
    )
    return chosen
