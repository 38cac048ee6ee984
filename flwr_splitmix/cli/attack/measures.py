"""Measures of an attack, as a table and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flwr_splitmix.cli.terminal import table
from flwr_splitmix.runs.reports.words import NOTHING

if TYPE_CHECKING:
    from flwr_splitmix.attacks.results import AttackResult
    from flwr_splitmix.attacks.scoring.intervals import Measure


def measures_table(titled: str, measures: list[Measure]) -> Any:
    """Return a table of measures."""
    listing = table(
        "metric", ">mean", ">95 % interval", ">median", ">5 % worst", ">floor", "beats it",
        title=titled,
    )  # fmt: skip
    for measure in measures:
        listing.add_row(
            measure.metric,
            _digits(measure.value),
            f"{_digits(measure.low)} .. {_digits(measure.high)}",
            _digits(measure.median),
            _digits(measure.worst),
            _digits(measure.floor),
            "yes" if measure.beats_floor else "no",
        )
    return listing


def _digits(value: float | None) -> str:
    """Return a number with four significant digits: errors have any size."""
    return NOTHING if value is None else f"{value:.4g}"


def plain_measure(measure: Measure, result: AttackResult) -> dict[str, Any]:
    """Return a measure as plain JSON values, with the fields that identify its result."""
    named = {
        "method": result.method,
        "attack": result.attack,
        "adversary": result.adversary,
        "client": result.client,
        "scale": result.scale,
        "seed": result.seed,
        "victims": result.victims,
    }
    return {**named, "stopped_after": result.stopped_after, **measure.to_json()}
