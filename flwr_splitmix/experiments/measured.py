"""Results of a cell's finished run, for tables and result files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr_splitmix.experiments.cell_runs import is_complete
from flwr_splitmix.experiments.cells import Cell
from flwr_splitmix.experiments.experiment import Entry, TableScore
from flwr_splitmix.runs import Run


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """Results of one finished run for a place of a table.

    Parameters
    ----------
    cell, seed
        Id and seed of the cell.
    scores
        The experiment's scores that the run has, by `TableScore.key`, in the units of the run's
        summary: accuracy as a fraction.
    uplink, downlink
        Bytes of all clients per epoch, with those of averaged models.
    epsilon
        The accountant's epsilon of the client that spent most; None without noise, infinite if
        there is no bound.
    client
        Costs of one client, see `ClientCosts`; None if not measured, or not kept.
    version
        Version of this package; "" if the run has none recorded.
    """

    cell: str
    seed: int
    scores: Mapping[str, float]
    uplink: float
    downlink: float
    epsilon: float | None = None
    client: Mapping[str, int] | None = None
    version: str = ""


def of_run(entry: Entry, scores: Sequence[TableScore], cell: Cell, run: Run) -> CellResult | None:
    """Read a run's results; return None if it is not finished or lacks the first score.

    Parameters
    ----------
    entry, cell
        The table's entry, and the cell of the run.
    scores
        Scores of the experiment.

    Raises
    ------
    RunError
        If the run's summary or metrics cannot be read.
    """
    summary = run.summary if is_complete(run) else None
    if summary is None or scores[0].value(summary) is None:
        return None
    values = {score.key: score.value(summary) for score in scores}
    return CellResult(
        cell=cell.id,
        seed=cell.seed,
        scores={key: value for key, value in values.items() if value is not None},
        uplink=_an_epoch("uplink_bytes", summary),
        downlink=_an_epoch("downlink_bytes", summary),
        epsilon=_epsilon(entry, run),
        client=summary.get("client-costs"),
        version=summary.get("versions", {}).get("flwr-splitmix", ""),
    )


def _an_epoch(name: str, summary: Mapping[str, Any]) -> float:
    total = summary[name] + summary.get("averaging_bytes", 0)
    return float(total / summary["rounds"])


def _epsilon(entry: Entry, run: Run) -> float | None:
    if entry.variant is None or "sigma_s" not in dict(entry.variant.options):
        return None
    rows = run.rows
    epsilon: float | None = rows[-1].get("epsilon") if rows else None
    return epsilon
