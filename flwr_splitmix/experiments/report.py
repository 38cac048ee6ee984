"""The report of an experiment: results beside the paper's numbers, and verdicts on its claims."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr_splitmix.experiments.cell_runs import find_runs
from flwr_splitmix.experiments.experiment import (
    Entry,
    Experiment,
    Measure,
    Ordering,
    Place,
    TableScore,
    paper_dataset,
)
from flwr_splitmix.experiments.measured import CellResult, of_run
from flwr_splitmix.experiments.scales import Scale
from flwr_splitmix.experiments.verdicts import BySeed, Verdict, judged
from flwr_splitmix.runs import Run


@dataclass(frozen=True, kw_only=True)
class TableLine:
    """Results for one entry of the table.

    Parameters
    ----------
    entry, seeds
        The entry, and its finished seeds.
    values
        The experiment's first score as shown, mostly top-1 accuracy in percent, of every finished
        seed, in the order of `seeds`.
    begun
        Number of seeds that are begun and not finished.
    uplinks
        Bytes that all clients send up per epoch, with those of averaged models, in the order of
        `seeds`.
    downlink
        Bytes that they receive, averaged over seeds; None if no seed is finished.
    client
        Costs of one client, see `ClientCosts`; None if not measured.
    epsilon
        The accountant's epsilon of the client that spent most, the largest over seeds; None if
        no seed is finished or there is no noise, infinite if there is no bound.
    """

    entry: Entry
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    begun: int
    uplinks: tuple[float, ...]
    downlink: float | None
    client: Mapping[str, int] | None
    epsilon: float | None = None
    further: tuple[tuple[float, ...], ...] = ()
    """The experiment's other scores, each as `values`; () if runs have none."""

    @property
    def mean(self) -> float | None:
        """Mean over seeds, in the units of `values`; None if no seed is finished."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def uplink(self) -> float | None:
        """Mean of `uplinks`; None if no seed is finished."""
        return statistics.fmean(self.uplinks) if self.uplinks else None

    def by_seed(self, measure: Measure = "accuracy") -> BySeed:
        """Return the values that orderings compare, by seed: `values`, or bytes sent up."""
        compared = self.uplinks if measure == "uplink" else self.values
        return dict(zip(self.seeds, compared, strict=True))

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def state(self) -> str:
        """State in words: "3 seeds", "not run", ..."""
        if self.entry.variant is None:
            return "not offered"
        if not self.values:
            return "begun" if self.begun else "not run"
        seeds = f"{len(self.values)} seed{'s' if len(self.values) > 1 else ''}"
        return f"{seeds}, {self.begun} begun" if self.begun else seeds


@dataclass(frozen=True)
class Claim:
    """An ordering and whether it holds for means over the same seeds, see `judged`.

    `margin` is their difference plus slack, None if it is not judged.
    """

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
    """Read an experiment's runs, and make one table for each data set and number of epochs begun.

    If nothing was begun, there is one empty table. Runs on a data set of other labels than the
    experiment's, which are another experiment's, are shown only if it is named.

    Parameters
    ----------
    home
        Home of the runs.
    dataset, epochs
        Restrict the tables to this data set or number of epochs; None for all.

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
        is_shown = experiment.may_be_on(name) if dataset is None else dataset == name
        if is_shown and epochs in (None, length):
            table = _table(experiment, scale, runs, name, length, sorted(set(seeds)))
            if any(line.values or line.begun for line in table.lines):
                tables.append(table)
    if tables:
        return tables
    length = epochs or experiment.epochs_at(scale)
    name = dataset or scale.source(experiment.track)
    return [_table(experiment, scale, {}, name, length, [])]


def table_of(
    experiment: Experiment,
    scale: Scale,
    dataset: str,
    epochs: int,
    measured_at: Mapping[Place, Sequence[CellResult]],
    begun_at: Mapping[Place, int] | None = None,
) -> Table:
    """Make a table from the results at each of its places.

    Parameters
    ----------
    measured_at
        Results at each place, one for each seed, in the order in which they are shown.
    begun_at
        Number of seeds at each place that are begun and not finished; None for none.
    """
    lines = tuple(
        _line(
            entry,
            measured_at.get(entry.place, ()),
            (begun_at or {}).get(entry.place, 0),
            experiment.scores,
        )
        for entry in experiment.entries
    )
    claims = tuple(_claims(experiment, lines, dataset))
    return Table(experiment, scale, dataset, epochs, lines, claims)


def _table(
    experiment: Experiment,
    scale: Scale,
    runs: Mapping[str, Run],
    dataset: str,
    epochs: int,
    seeds: Sequence[int],
) -> Table:
    measured_at: dict[Place, list[CellResult]] = {}
    begun_at: dict[Place, int] = {}
    for entry, cell in experiment.cells(scale, seeds=seeds, source=dataset, epochs=epochs):
        if cell.id in runs:
            one = of_run(entry, experiment.scores, cell, runs[cell.id])
            if one is None:
                begun_at[entry.place] = begun_at.get(entry.place, 0) + 1
            else:
                measured_at.setdefault(entry.place, []).append(one)
    return table_of(experiment, scale, dataset, epochs, measured_at, begun_at)


def _line(
    entry: Entry, measured: Sequence[CellResult], begun: int, scores: Sequence[TableScore]
) -> TableLine:
    shown = [_values(score, measured) for score in scores]
    return TableLine(
        entry=entry,
        seeds=tuple(one.seed for one in measured),
        values=shown[0],
        begun=begun,
        uplinks=tuple(one.uplink for one in measured),
        downlink=statistics.fmean(one.downlink for one in measured) if measured else None,
        client=measured[-1].client if measured else None,
        epsilon=max((one.epsilon for one in measured if one.epsilon is not None), default=None),
        further=tuple(shown[1:]),
    )


def _values(score: TableScore, measured: Sequence[CellResult]) -> tuple[float, ...]:
    return tuple(
        score.in_table_units(one.scores[score.key]) for one in measured if score.key in one.scores
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
        below, above = low.by_seed(ordering.measure), high.by_seed(ordering.measure)
        yield Claim(ordering, *judged(below, above, ordering.slack))
