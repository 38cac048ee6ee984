"""What a finished run of a cell measured, as tables and result files have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr_splitmix.experiments.cells import Cell
from flwr_splitmix.experiments.experiment import Entry, TableScore
from flwr_splitmix.runs import Run


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One finished run of a place of a table.

    Parameters
    ----------
    cell, seed
        The cell's id, and its seed.
    scores
        Of the experiment's scores those that the run has, by `TableScore.key`, in the units of the
        run's summary: accuracy as a fraction.
    uplink, downlink
        Bytes of all clients in an epoch, averaged models included.
    epsilon
        What the accountant says of the client that spent most; None without noise, infinite if
        there is no bound.
    client
        Costs of one client, see `ClientCosts`; None if not measured, or not kept.
    version
        Of this package; "" if the run does not say.
    """

    cell: str
    seed: int
    scores: Mapping[str, float]
    uplink: float
    downlink: float
    epsilon: float | None = None
    client: Mapping[str, int] | None = None
    version: str = ""


def of_run(entry: Entry, scores: Sequence[TableScore], cell: Cell, run: Run) -> Measured | None:
    """Read what a run measured; None if it is not finished, or lacks the first of the scores.

    Parameters
    ----------
    entry, cell
        The place that the run is for, and the cell that it is of.

    Raises
    ------
    RunError
        If the run's summary or metrics cannot be read.
    """
    summary = run.summary
    if summary is None or scores[0].value(summary) is None:
        return None
    values = {score.key: score.value(summary) for score in scores}
    return Measured(
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
