"""The report of an experiment: results beside the paper's numbers, and its claims judged."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flwr_splitmix.experiments.cell_runs import find_runs
from flwr_splitmix.experiments.cells import Cell
from flwr_splitmix.experiments.experiment import (
    Entry,
    Experiment,
    Ordering,
    Place,
    TableScore,
    paper_dataset,
)
from flwr_splitmix.experiments.scales import Scale
from flwr_splitmix.runs import Run

Verdict = Literal["agrees", "disagrees", "not run", "not offered"]


@dataclass(frozen=True, kw_only=True)
class TableLine:
    """One place of the table.

    Parameters
    ----------
    values
        The experiment's first score, as it is shown, of every finished seed, in the order of
        `seeds`: of most top-1 accuracy in percent.
    begun
        Number of seeds that are begun and not finished.
    uplink, downlink
        Bytes of all clients in an epoch, averaged models included; None if nothing is finished.
    client
        Costs of one client, see `ClientCosts`; None if not measured.
    epsilon
        What the accountant says of the client that spent most, the largest over seeds; None if
        nothing is finished or there is no noise, infinite if there is no bound.
    """

    entry: Entry
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    begun: int
    uplink: float | None
    downlink: float | None
    client: Mapping[str, int] | None
    epsilon: float | None = None
    further: tuple[tuple[float, ...], ...] = ()
    """The experiment's other scores, likewise; () where a run has none."""

    @property
    def mean(self) -> float | None:
        """Mean over seeds, in the first score's units."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def state(self) -> str:
        """How far it is, in words: "3 seeds", "not run", ..."""
        if self.entry.variant is None:
            return "not offered"
        if not self.values:
            return "begun" if self.begun else "not run"
        seeds = f"{len(self.values)} seed{'s' if len(self.values) > 1 else ''}"
        return f"{seeds}, {self.begun} begun" if self.begun else seeds


@dataclass(frozen=True)
class Claim:
    """An ordering and whether it holds for the means; `margin` is how far apart they are."""

    ordering: Ordering
    verdict: Verdict
    margin: float | None


@dataclass(frozen=True)
class Table:
    """An experiment on one data set with one number of epochs."""

    experiment: Experiment
    scale: Scale
    dataset: str
    epochs: int
    lines: tuple[TableLine, ...]
    claims: tuple[Claim, ...]


def make_tables(
    experiment: Experiment,
    scale: Scale,
    home: Path | None,
    *,
    dataset: str | None = None,
    epochs: int | None = None,
) -> list[Table]:
    """Read an experiment's runs: one table for each data set and number of epochs that was begun.

    If nothing was begun there is one empty table.

    Parameters
    ----------
    dataset, epochs
        Only this one; None for all that there are.

    Raises
    ------
    RunError
        If the runs cannot be read.
    """
    runs = {
        name: run for name, run in find_runs(home).items() if run.config.get("scale") == scale.name
    }
    settings: dict[tuple[str, int], list[int]] = {}
    for run in runs.values():
        setting = run.config["dataset"], run.config["num-server-rounds"]
        settings.setdefault(setting, []).append(run.config["seed"])
    tables = []
    for (name, length), seeds in sorted(settings.items()):
        if (dataset in (None, name)) and (epochs in (None, length)):
            made = _table(experiment, scale, runs, name, length, sorted(set(seeds)))
            if any(line.values or line.begun for line in made.lines):
                tables.append(made)
    if tables:
        return tables
    length = epochs or scale.recipes[experiment.track].epochs
    name = dataset or scale.source(experiment.track)
    return [_table(experiment, scale, {}, name, length, [])]


def _table(
    experiment: Experiment,
    scale: Scale,
    runs: Mapping[str, Run],
    dataset: str,
    epochs: int,
    seeds: Sequence[int],
) -> Table:
    by_place: dict[Place, list[tuple[Cell, Run]]] = {
        entry.place: [] for entry in experiment.entries
    }
    for entry, cell in experiment.cells(scale, seeds=seeds, source=dataset, epochs=epochs):
        if cell.id in runs:
            by_place[entry.place].append((cell, runs[cell.id]))
    lines = tuple(
        _line(entry, by_place[entry.place], experiment.scores) for entry in experiment.entries
    )
    claims = tuple(_claims(experiment, lines, dataset))
    return Table(experiment, scale, dataset, epochs, lines, claims)


def _line(
    entry: Entry, runs: Sequence[tuple[Cell, Run]], scores: Sequence[TableScore]
) -> TableLine:
    done = [(cell, run.summary or {}) for cell, run in runs if run.status == "finished"]
    done = [(cell, summary) for cell, summary in done if scores[0].of(summary) is not None]
    shown = [_values(score, [summary for _, summary in done]) for score in scores]
    newest = done[-1][1] if done else None
    return TableLine(
        entry=entry,
        seeds=tuple(cell.seed for cell, _ in done),
        values=shown[0],
        begun=len(runs) - len(done),
        uplink=_bytes("uplink_bytes", done),
        downlink=_bytes("downlink_bytes", done),
        client=newest.get("client-costs") if newest else None,
        epsilon=_epsilon(entry, [run for _, run in runs if run.status == "finished"]),
        further=tuple(shown[1:]),
    )


def _values(score: TableScore, summaries: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    values = [score.of(summary) for summary in summaries]
    return tuple(value for value in values if value is not None)


def _epsilon(entry: Entry, runs: Sequence[Run]) -> float | None:
    if entry.variant is None or "sigma_s" not in dict(entry.variant.options):
        return None
    last = [run.rows[-1].get("epsilon") for run in runs if run.rows]
    return max((value for value in last if value is not None), default=None)


def _bytes(name: str, done: Sequence[tuple[Cell, Mapping[str, Any]]]) -> float | None:
    """Return the mean over seeds of the bytes that all clients exchange in an epoch, one way."""
    if not done:
        return None
    totals = [summary[name] + summary.get("averaging_bytes", 0) for _, summary in done]
    return statistics.fmean(
        total / summary["rounds"] for total, (_, summary) in zip(totals, done, strict=True)
    )


def _claims(experiment: Experiment, lines: Sequence[TableLine], dataset: str) -> Iterator[Claim]:
    by_place = {line.entry.place: line for line in lines}
    for ordering in experiment.orderings:
        if ordering.datasets and paper_dataset(dataset) not in ordering.datasets:
            continue
        low, high = by_place[ordering.low], by_place[ordering.high]
        if low.entry.variant is None or high.entry.variant is None:
            yield Claim(ordering, "not offered", None)
            continue
        values = [
            line.uplink if ordering.measure == "uplink" else line.mean for line in (low, high)
        ]
        below, above = values
        if below is None or above is None:
            yield Claim(ordering, "not run", None)
        else:
            margin = above + ordering.slack - below
            yield Claim(ordering, "agrees" if margin > 0 else "disagrees", margin)
