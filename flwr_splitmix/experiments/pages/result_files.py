"""Result files: a small JSON file for each experiment, scale and data set, kept with the code."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr_splitmix.experiments.cell_runs import find_runs
from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.experiments.named import EXPERIMENTS, experiment_named
from flwr_splitmix.experiments.pages.accuracy import (
    AccuracyResults,
    accuracy_results,
    with_shared_cells,
)
from flwr_splitmix.experiments.pages.attacks import PrivacyResults, privacy_results
from flwr_splitmix.experiments.pages.results import AnyExperiment, Results
from flwr_splitmix.experiments.privacy.matrices import IMAGES
from flwr_splitmix.experiments.privacy.named import PRIVACY_EXPERIMENTS
from flwr_splitmix.experiments.scales import SCALES, scale_named
from flwr_splitmix.files.writing import write_atomic

FOLDER = "results/data"
"""Folder of the result files, below that of the pages."""


def every_experiment() -> dict[str, AnyExperiment]:
    """Return all experiments by name: those that train, then those on privacy."""
    return {**EXPERIMENTS, **PRIVACY_EXPERIMENTS}


def read_results(folder: Path) -> list[Results[Any]]:
    """Read all result files of a folder, in the order of the experiments, scales and data sets.

    A seed is left out if its place has another cell today: the experiment has changed since, and
    the number no longer belongs to it.

    Raises
    ------
    ExperimentError
        If a file is not a result file, or its experiment or scale does not exist.
    """
    experiments, scales = list(every_experiment()), list(SCALES)
    return sorted(
        map(_read, sorted(folder.glob("*.json"))),
        key=lambda one: (
            experiments.index(one.experiment.name),
            scales.index(one.scale.name),
            one.dataset,
        ),
    )


def keep_results(docs: Path, home: Path | None, scales: Iterable[str]) -> list[str]:
    """Add the results of runs to the result files; return a line for each file written.

    Seeds of cells that an experiment no longer has are removed.

    Parameters
    ----------
    docs
        Folder of the pages.
    home
        Directory that holds runs/ and attacks/; None to add nothing.
    scales
        Scales whose runs are added.

    Raises
    ------
    ExperimentError, RunError
        If a result file or a run cannot be read, or a scale does not exist.
    OSError
        If a file cannot be written.
    """
    older = {result.name: result for result in read_results(docs / FOLDER)}
    newer = {} if home is None else {result.name: result for result in _run(home, list(scales))}
    merged: dict[str, Results[Any]] = {**older, **newer}
    for name in older.keys() & newer.keys():
        merged[name] = older[name].merged(newer[name])
    accuracies = [one for one in merged.values() if isinstance(one, AccuracyResults)]
    merged |= {one.name: one for one in with_shared_cells(accuracies)}
    lines = []
    for name, result in sorted(merged.items()):
        old = older.get(name)
        file, text = docs / FOLDER / name, result.to_json()
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        write_atomic(file, text.encode())  # it may hold seeds whose runs are elsewhere
        lines.append(f"{file}: {result.count} runs, {result.count - (old.count if old else 0)} new")
    return lines


def _run(home: Path, scales: Iterable[str]) -> list[Results[Any]]:
    sizes = [scale_named(name) for name in scales]
    return [
        *accuracy_results(EXPERIMENTS.values(), sizes, find_runs(home).values()),
        *privacy_results(
            PRIVACY_EXPERIMENTS.values(), [IMAGES.size(size.name) for size in sizes], home
        ),
    ]


def _read(path: Path) -> Results[Any]:
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        name, scale, dataset = whole["experiment"], whole["scale"], str(whole["dataset"])
        seeds_at = {(each["row"], each["column"]): each["seeds"] for each in whole["places"]}
        if name in PRIVACY_EXPERIMENTS:
            size = IMAGES.size(scale)
            return PrivacyResults.of_plain(PRIVACY_EXPERIMENTS[name], size, dataset, seeds_at)
        return AccuracyResults.of_plain(
            experiment_named(name), scale_named(scale), dataset, seeds_at
        )
    except ExperimentError as error:
        raise ExperimentError(f"{path}: {error}; remove the file, or name another in it") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExperimentError(
            f"{path} is not a result file ({error!r}); remove it, and make it anew from the runs"
        ) from error
