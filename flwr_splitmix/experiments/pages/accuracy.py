"""Results of experiments that train: scores, bytes and epsilon of finished cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr_splitmix.experiments.cell_runs import is_complete
from flwr_splitmix.experiments.experiment import Experiment, Place
from flwr_splitmix.experiments.measured import CellResult, of_run
from flwr_splitmix.experiments.pages.results import Results
from flwr_splitmix.experiments.pages.table_block import table_block
from flwr_splitmix.experiments.report import Table, table_of
from flwr_splitmix.experiments.scales import Scale
from flwr_splitmix.experiments.verdicts import Verdict
from flwr_splitmix.runs import Run


@dataclass(frozen=True)
class AccuracyResults(Results[CellResult]):
    """Measurements of an experiment's runs, over its own number of epochs."""

    experiment: Experiment
    scale: Scale

    @property
    def table(self) -> Table:
        """The results beside the paper's numbers, with verdicts on its claims."""
        epochs = self.experiment.epochs_at(self.scale)
        return table_of(self.experiment, self.scale, self.dataset, epochs, self.measured_at)

    @property
    def versions(self) -> dict[str, list[Place]]:
        """Versions of this package that the runs were made with, and the places of these runs."""
        places: dict[str, list[Place]] = {}
        for at, measured in self.measured_at.items():
            for version in sorted({one.version for one in measured} - {""}):
                places.setdefault(version, []).append(at)
        return dict(sorted(places.items()))

    @property
    def verdicts(self) -> list[Verdict]:
        """Verdicts on the paper's orderings, in order."""
        return [claim.verdict for claim in self.table.claims]

    def block(self, link: str) -> str:
        """Return the table in Markdown, with the orderings; `link` leads to the result file."""
        return table_block(self.table, self.versions, link)

    def plain(self, one: CellResult) -> dict[str, Any]:
        """Return the stored values of a seed, as plain JSON values."""
        values: dict[str, Any] = {
            "seed": one.seed,
            "cell": one.cell,
            "version": one.version,
            "scores": {name: _in_json(value) for name, value in one.scores.items()},
            "uplink_bytes_per_epoch": one.uplink,
            "downlink_bytes_per_epoch": one.downlink,
        }
        if one.epsilon is not None:
            values["epsilon"] = _in_json(one.epsilon)
        return values

    @classmethod
    def of_plain(
        cls,
        experiment: Experiment,
        scale: Scale,
        dataset: str,
        seeds_at: Mapping[Place, Sequence[Mapping[str, Any]]],
    ) -> AccuracyResults:
        """Make results from stored values, without seeds of cells that places no longer have.

        Raises
        ------
        KeyError, TypeError, ValueError
            If a value is missing or invalid.
        """
        measured_at = {at: tuple(_measured(one) for one in seeds) for at, seeds in seeds_at.items()}
        results = cls(experiment, scale, dataset, measured_at)
        cells = experiment.cells(scale, seeds=results.seeds, source=dataset)
        return results.limited_to({(entry.place, cell.id) for entry, cell in cells})


def accuracy_results(
    experiments: Iterable[Experiment], scales: Iterable[Scale], runs: Iterable[Run]
) -> Iterator[AccuracyResults]:
    """Yield the results of finished runs, for each scale, data set and experiment that has any.

    Runs with another number of epochs than the experiment's are left out, and so are those on a
    data set of other labels than the experiment's.

    Parameters
    ----------
    runs
        Runs of cells, at most one of each cell; see `find_runs`.

    Raises
    ------
    RunError
        If a run cannot be read.
    """
    by_cell = {run.config["cell"]: run for run in runs if is_complete(run)}
    every = list(experiments)
    for scale in scales:
        scale_runs = [run for run in by_cell.values() if run.config.get("scale") == scale.name]
        seeds = sorted({run.config["seed"] for run in scale_runs})
        for dataset in sorted({run.config["dataset"] for run in scale_runs}):
            for experiment in (one for one in every if one.may_be_on(dataset)):
                measured_at: dict[Place, tuple[CellResult, ...]] = {
                    e.place: () for e in experiment.entries
                }
                for entry, cell in experiment.cells(scale, seeds=seeds, source=dataset):
                    run = by_cell.get(cell.id)
                    one = run and of_run(entry, experiment.scores, cell, run)
                    if one:
                        measured_at[entry.place] += (one,)
                if some := {at: measured for at, measured in measured_at.items() if measured}:
                    yield AccuracyResults(experiment, scale, dataset, some)


def with_shared_cells(results: Sequence[AccuracyResults]) -> list[AccuracyResults]:
    """Return results in which a cell that several experiments have is in all of their tables.

    A run is added to the tables that exist; one that was kept for another experiment only, from a
    directory that is gone, would be missing in them.
    """
    measured_by_cell = {
        (result.scale.name, result.dataset, one.cell): one
        for result in results
        for measured in result.measured_at.values()
        for one in measured
    }
    return [_completed(result, measured_by_cell) for result in results]


def _completed(
    result: AccuracyResults, measured_by_cell: Mapping[tuple[str, str, str], CellResult]
) -> AccuracyResults:
    keys = [score.key for score in result.experiment.scores]
    seeds = sorted({one.seed for one in measured_by_cell.values()})
    shared: dict[Place, tuple[CellResult, ...]] = {e.place: () for e in result.experiment.entries}
    for entry, cell in result.experiment.cells(result.scale, seeds=seeds, source=result.dataset):
        one = measured_by_cell.get((result.scale.name, result.dataset, cell.id))
        if one is not None and keys[0] in one.scores:
            scores = {key: value for key, value in one.scores.items() if key in keys}
            shared[entry.place] += (replace(one, scores=scores),)
    # The results kept for this experiment have all of its scores.
    return replace(result, measured_at=shared).merged(result)


def _in_json(value: float) -> float | str:
    """Return a number as it is stored: JSON has no infinity, and no NaN."""
    return value if math.isfinite(value) else str(value)


def _measured(one: Mapping[str, Any]) -> CellResult:
    epsilon = one.get("epsilon")
    return CellResult(
        cell=one["cell"],
        seed=one["seed"],
        version=one["version"],
        scores={name: float(value) for name, value in one["scores"].items()},
        uplink=one["uplink_bytes_per_epoch"],
        downlink=one["downlink_bytes_per_epoch"],
        epsilon=None if epsilon is None else float(epsilon),
    )
