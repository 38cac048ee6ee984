"""Noise of a row, chosen so that its utility matches another row's (for images: CutMixSL's)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flwr_splitmix.experiments.cells import as_options
from flwr_splitmix.experiments.privacy.cells import Place
from flwr_splitmix.experiments.privacy.kinds import AnyRow
from flwr_splitmix.experiments.privacy.rows import TOLERANCE, Row
from flwr_splitmix.files.writing import write_json
from flwr_splitmix.runs.damage import damage_of, read_object

LADDER: dict[str, tuple[float, ...]] = {
    "smoke": (0.5,),
    "cpu": (0.1, 0.2, 0.4, 0.8, 1.6),
    "paper": (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2),
}
"""Standard deviations to try, by scale, in units of the smashed data."""


def with_noise(row: Row, sigma: float) -> Row:
    """Return a row with noise of standard deviation `sigma` on smashed data."""
    return replace(row, options=as_options({**dict(row.options), "sigma_s": sigma}))


def resolved(row: Row, place: Place) -> Row:
    """Return a row as it is run: with the noise found for it, if it has equal utility."""
    if not row.equal_utility:
        return row
    return with_noise(row, chosen_noise(row, place, "sigma_s"))


def find_noise(row: Row, place: Place, target: float, accuracy: Callable[[Row], float]) -> float:
    """Find a row's standard deviation with `climb`.

    Parameters
    ----------
    target
        CutMixSL's top-1 accuracy, a fraction.
    accuracy
        Trains a row and returns its top-1 accuracy.
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
    """Try increasing noise until utility is too low; store and return the last value before.

    If utility is already too low with the least noise, this is chosen, as the row must have noise.

    Parameters
    ----------
    knob
        Name of the option that sets the noise.
    ladder
        Its values, from the least noise to the most.
    target
        Utility of the other row; this row's may be lower by `TOLERANCE`.
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
    """Return the value of an option that `climb` has stored for a row.

    Raises
    ------
    RunError
        If its file cannot be read; the message names it and the remedy.
    """
    file, again = place.noise(row), "remove it, and the noise is searched for again"
    with damage_of(file, again):
        return float(read_object(file, again)[knob])
