"""Results of the matrix: one for each row, column and metric, with the gate's verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flwr_splitmix.experiments.privacy.cells import MatrixCell, Place
from flwr_splitmix.experiments.privacy.kinds import AnyColumn, AnyRow

NOT_APPLICABLE = "not applicable"

Judged = Mapping[str, Any]
"""A stored metric of a cell: metric, value, low, high, floor, lower_is_stronger, main."""


@dataclass(frozen=True)
class Result:
    """Result of one attack by one adversary on a method, in one metric, over all seeds.

    Parameters
    ----------
    method, attack, adversary, metric
        Names; a setting of the attack is in parentheses after its name. The metric is "not
        applicable" if the adversary lacks what the attack needs, which does not mean "safe". The
        attack "none" stands for the matrix's facts: accuracy, bytes sent per epoch, ...
    value
        Mean over seeds.
    low, high
        Lower and upper end of the union of the seeds' confidence intervals; for facts, of the
        seeds' values.
    floor
        Best value reached without the victim's smashed data, mean over seeds.
    passed_gate
        Whether the attack beats its floor on the unprotected method or, if it was not run on that,
        on the row where it is strongest; otherwise it does not measure safety.
    seeds, reason
        Number of seeds; reason why the attack is not applicable.
    stopped_after
        Most seconds after which the attack was cut short with one of the seeds; None if it never
        was, or if that was not noted.
    """

    method: str
    attack: str
    adversary: str
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    passed_gate: bool | None = None
    seeds: int = 0
    reason: str = ""
    stopped_after: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the keys of the command line's JSON; values that are not finite become None."""
        entries = {k: v for k, v in asdict(self).items() if k not in ("seeds", "reason")}
        return {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in entries.items()
        }


def results(cells: Sequence[MatrixCell], place: Place) -> list[Result]:
    """Read the results of finished cells; the gate is judged by all rows with these seeds.

    For each method, facts such as accuracy come first, then attacks in the order of the columns.
    """
    all_results: list[Result] = []
    seeds = sorted({cell.seed for cell in cells})
    gates = {column: passes_gate(column, seeds, place) for column in {c.column for c in cells}}
    for row in [
        row for row in place.matrix.rows.values() if any(cell.row == row for cell in cells)
    ]:
        row_cells = [cell for cell in cells if cell.row == row]
        all_results += _facts(row, row_cells, place)
        for column in place.matrix.columns:
            under = [cell for cell in row_cells if cell.column == column]
            if under:
                all_results += _of_column(row, column, under, place, gates[column])
    return all_results


def passes_gate(column: AnyColumn, seeds: Sequence[int], place: Place) -> bool | None:
    """Return whether an attack passes the gate; None if it was not run on any row."""
    matrix = place.matrix
    first = _strength(matrix.rows[matrix.unprotected], column, seeds, place)
    if first is not None:
        return first > 0
    others = [_strength(row, column, seeds, place) for row in matrix.rows.values()]
    strengths = [strength for strength in others if strength is not None]
    return max(strengths) > 0 if strengths else None


def _strength(row: AnyRow, column: AnyColumn, seeds: Sequence[int], place: Place) -> float | None:
    """Return how far the main metric's interval is beyond the floor, mean over seeds."""
    main = [
        metric
        for seed in seeds
        if (result := MatrixCell(row, column, seed).result(place)) and result["state"] == "done"
        for metric in result["metrics"]
        if metric["main"]
    ]
    if not main:
        return None
    return statistics.fmean(
        metric["floor"] - metric["high"]
        if metric["lower_is_stronger"]
        else metric["low"] - metric["floor"]
        for metric in main
    )


def _facts(row: AnyRow, cells: Sequence[MatrixCell], place: Place) -> list[Result]:
    by_seed = {cell.seed: result for cell in cells if (result := cell.result(place))}
    fact_results = []
    for fact in place.matrix.facts:
        values = [float(result[fact.key]) for result in by_seed.values() if fact.key in result]
        if values:
            mean, ends = statistics.fmean(values), (min(values), max(values))
            fact_result = Result(
                row.name, "none", "none", fact.metric, mean, *ends, seeds=len(values)
            )
            fact_results.append(fact_result)
    return fact_results


def _of_column(
    row: AnyRow, column: AnyColumn, cells: Sequence[MatrixCell], place: Place, gate: bool | None
) -> list[Result]:
    read = [result for cell in cells if (result := cell.result(place))]
    finished = [result for result in read if result["state"] == "done"]
    if read and not finished:
        return [
            Result(
                row.name,
                column.label,
                column.adversary,
                NOT_APPLICABLE,
                None,
                reason=read[0]["reason"],
            )
        ]
    by_metric: dict[str, list[Judged]] = {}
    for result in finished:
        for metric in result["metrics"]:
            by_metric.setdefault(metric["metric"], []).append(metric)
    stopped = [after for result in finished if (after := result.get("stopped_after")) is not None]
    return [
        Result(
            row.name,
            column.label,
            column.adversary,
            name,
            statistics.fmean(each["value"] for each in judged),
            min(each["low"] for each in judged),
            max(each["high"] for each in judged),
            statistics.fmean(each["floor"] for each in judged),
            gate,
            seeds=len(judged),
            stopped_after=max(stopped, default=None),
        )
        for name, judged in by_metric.items()
    ]
