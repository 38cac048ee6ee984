"""Result files: what was measured at each place of an experiment's table, to be kept with the code.

One JSON file for each experiment, scale and data set. It says of every seed which cell it is of,
its scores, its bytes and its epsilon, and nothing of the machine and the time of the run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr_splitmix.experiments.cells import Cell, ExperimentError
from flwr_splitmix.experiments.experiment import Entry, Experiment, Place
from flwr_splitmix.experiments.measured import Measured, of_run
from flwr_splitmix.experiments.named import EXPERIMENTS, experiment_named
from flwr_splitmix.experiments.report import Table, table_of
from flwr_splitmix.experiments.scales import SCALES, Scale, scale_named
from flwr_splitmix.runs import Run

FOLDER = "results/data"
"""Of the result files, below the folder of the pages."""


@dataclass(frozen=True)
class ResultFile:
    """What was measured of an experiment at a scale on a data set, over the scale's own epochs.

    Parameters
    ----------
    dataset
        The data set's name, see `dataset_name`.
    measured_at
        By place of the table, in the table's order, and by seed, in the order of the seeds.
    """

    experiment: Experiment
    scale: Scale
    dataset: str
    measured_at: Mapping[Place, tuple[Measured, ...]]

    @property
    def name(self) -> str:
        """The file's: `cutmixsl-table2-cpu-fashion_mnist.json`."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", self.dataset)
        return f"{self.experiment.name}-{self.scale.name}-{plain}.json"

    @property
    def epochs(self) -> int:
        """Of every run in it."""
        return self.scale.recipes[self.experiment.track].epochs

    @property
    def table(self) -> Table:
        """The results beside the paper's numbers, and its claims judged."""
        return table_of(self.experiment, self.scale, self.dataset, self.epochs, self.measured_at)

    @property
    def count(self) -> int:
        """Number of seeds, of all places together."""
        return sum(map(len, self.measured_at.values()))

    @property
    def versions(self) -> tuple[str, ...]:
        """Versions of this package that the runs were made with."""
        every = {one.version for place in self.measured_at.values() for one in place}
        return tuple(sorted(every - {""}))

    def merged(self, newer: ResultFile) -> ResultFile:
        """Return both together; where both have a seed of a place, `newer` is believed."""
        both = {
            entry.place: {
                one.seed: one
                for each in (self, newer)
                for one in each.measured_at.get(entry.place, ())
            }
            for entry in self.experiment.entries
        }
        return ResultFile(
            self.experiment,
            self.scale,
            self.dataset,
            {
                place: tuple(by_seed[seed] for seed in sorted(by_seed))
                for place, by_seed in both.items()
                if by_seed
            },
        )

    def to_json(self) -> str:
        """Return the file's text."""
        whole = {
            "experiment": self.experiment.name,
            "scale": self.scale.name,
            "dataset": self.dataset,
            "places": [
                {"row": row, "column": column, "seeds": [_plain(one) for one in measured]}
                for (row, column), measured in self.measured_at.items()
            ],
        }
        return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_results(folder: Path) -> list[ResultFile]:
    """Read all result files of a folder, in the order of the experiments, scales and data sets.

    A seed is left out if it is of another cell than the place has today: what the experiment is
    has changed since, and the number is no longer one of it.

    Raises
    ------
    ExperimentError
        If a file is not one of these, or of an experiment or a scale that there is not.
    """
    kept = [_read(path) for path in sorted(folder.glob("*.json"))]
    experiments, scales = list(EXPERIMENTS), list(SCALES)
    return sorted(
        kept,
        key=lambda one: (
            experiments.index(one.experiment.name),
            scales.index(one.scale.name),
            one.dataset,
        ),
    )


def exported(
    experiments: Iterable[Experiment], scales: Iterable[Scale], runs: Iterable[Run]
) -> Iterator[ResultFile]:
    """Return what finished runs measured of experiments, one for each data set.

    Runs of another number of epochs than the scale's are left out.

    Parameters
    ----------
    runs
        Of cells, at most one of each; see `find_runs`.

    Raises
    ------
    RunError
        If a run cannot be read.
    """
    by_cell = {run.config["cell"]: run for run in runs if run.status == "finished"}
    for scale in scales:
        own = [run for run in by_cell.values() if run.config.get("scale") == scale.name]
        seeds = sorted({run.config["seed"] for run in own})
        for dataset in sorted({run.config["dataset"] for run in own}):
            for experiment in experiments:
                made: dict[Place, tuple[Measured, ...]] = {}
                for entry, cell in experiment.cells(scale, seeds=seeds, source=dataset):
                    if one := _of_cell(experiment, entry, cell, by_cell):
                        made[entry.place] = (*made.get(entry.place, ()), one)
                if made:
                    in_order = {
                        e.place: made[e.place] for e in experiment.entries if e.place in made
                    }
                    yield ResultFile(experiment, scale, dataset, in_order)


def _of_cell(
    experiment: Experiment, entry: Entry, cell: Cell, by_cell: Mapping[str, Run]
) -> Measured | None:
    run = by_cell.get(cell.id)
    return None if run is None else of_run(entry, experiment.scores, cell, run)


def _plain(one: Measured) -> dict[str, Any]:
    values: dict[str, Any] = {
        "seed": one.seed,
        "cell": one.cell,
        "version": one.version,
        "scores": dict(one.scores),
        "uplink_bytes_per_epoch": one.uplink,
        "downlink_bytes_per_epoch": one.downlink,
    }
    if one.epsilon is not None:
        values["epsilon"] = "inf" if one.epsilon == math.inf else one.epsilon
    return values


def _read(path: Path) -> ResultFile:
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        experiment, scale = experiment_named(whole["experiment"]), scale_named(whole["scale"])
        dataset = str(whole["dataset"])
        by_place = {
            (each["row"], each["column"]): [_measured(one) for one in each["seeds"]]
            for each in whole["places"]
        }
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}; remove the file or rename in it") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ExperimentError(
            f"{path} is not a result file ({error!r}); remove it, and make it anew from the runs"
        ) from error
    seeds = sorted({one.seed for measured in by_place.values() for one in measured})
    current = {
        (entry.place, cell.id)
        for entry, cell in experiment.cells(scale, seeds=seeds, source=dataset)
    }
    kept = {
        entry.place: tuple(
            one for one in by_place.get(entry.place, ()) if (entry.place, one.cell) in current
        )
        for entry in experiment.entries
    }
    return ResultFile(experiment, scale, dataset, {at: some for at, some in kept.items() if some})


def _measured(one: Mapping[str, Any]) -> Measured:
    epsilon = one.get("epsilon")
    return Measured(
        cell=one["cell"],
        seed=one["seed"],
        version=one["version"],
        scores=one["scores"],
        uplink=one["uplink_bytes_per_epoch"],
        downlink=one["downlink_bytes_per_epoch"],
        epsilon=None if epsilon is None else float(epsilon),
    )
