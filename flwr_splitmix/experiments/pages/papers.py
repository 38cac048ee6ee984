"""Blocks of pages that list which experiments of a paper were run, and how many orderings hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.experiments.pages.accuracy import AccuracyResults
from flwr_splitmix.experiments.pages.attacks import PrivacyResults
from flwr_splitmix.experiments.pages.result_files import every_experiment
from flwr_splitmix.experiments.pages.results import AnyExperiment, Results
from flwr_splitmix.experiments.privacy.matrices import IMAGES
from flwr_splitmix.experiments.privacy.tables_of_papers import PrivacyExperiment
from flwr_splitmix.experiments.scales import Scale
from flwr_splitmix.experiments.tables import counted, grid
from flwr_splitmix.runs.reports.words import NOTHING

PAGES: dict[str, str] = {
    "CutMixSL": "results/cutmixsl.md",
    "DP-CutMixSL": "results/dp-cutmixsl.md",
    "DP-CutMix workshop paper": "results/workshop.md",
    "Patch Shuffling": "results/patch-shuffling.md",
    "MixGuard": "results/mixguard.md",
    "this project": "results.md",
}
"""Page of each paper's experiments, by the paper's name in their sources."""


def experiments_of(paper: str) -> list[AnyExperiment]:
    """Return a paper's experiments.

    Raises
    ------
    ExperimentError
        If no experiment belongs to the paper.
    """
    experiments = [each for each in every_experiment().values() if paper_of(each) == paper]
    if not experiments:
        raise ExperimentError(f"no experiment belongs to {paper!r}; available: {', '.join(PAGES)}")
    return experiments


def paper_of(experiment: AnyExperiment) -> str:
    """Return the paper that an experiment's source names first."""
    return experiment.source.partition(",")[0]


def experiments_block(paper: str, results: Sequence[Results[Any]]) -> str:
    """Return a table of all experiments of a paper: what was run, and how orderings fare."""
    rows = []
    for experiment in experiments_of(paper):
        experiment_results = [
            result for result in results if result.experiment == experiment and result.count
        ]
        source = experiment.source.removeprefix(paper).removeprefix(", ")
        head = [f"`{experiment.name}`", experiment.title, source or NOTHING]
        for result in experiment_results:
            rows.append([*head, _extent(result), counted(result.verdicts) or NOTHING])
            head = ["", "", ""]
        if not experiment_results:
            rows.append([*head, "not run" if experiment.offered else "not offered", NOTHING])
    return "\n".join(grid(("experiment", "shows", "where", "run", "orderings"), rows))


def overview_block(scale: Scale, results: Sequence[Results[Any]]) -> str:
    """Return a table of all papers: how much was run at a scale, and how many orderings hold.

    Experiments without a place that can be run are not counted.
    """
    rows = []
    for paper, page in PAGES.items():
        paper_results = [
            result
            for result in results
            if result.scale.name == scale.name and paper_of(result.experiment) == paper
        ]
        every = [each for each in experiments_of(paper) if each.offered]
        verdicts = Counter(verdict for result in paper_results for verdict in result.verdicts)
        run = {result.experiment.name for result in paper_results if result.count}
        verdicts["not run"] += sum(
            _unjudged(experiment, scale) for experiment in every if experiment.name not in run
        )
        link = paper if page == "results.md" else f"[{paper}]({page})"
        counts = [verdicts[verdict] for verdict in ("agrees", "disagrees", "not run")]
        rows.append([link, f"{len(run)} of {len(every)}", *map(str, counts)])
    names = (
        "paper",
        "experiments run, wholly or in part",
        "orderings agree",
        "disagree",
        "not run",
    )
    return "\n".join(grid(names, rows))


def _unjudged(experiment: AnyExperiment, scale: Scale) -> int:
    """Return the number of orderings of an experiment that was not run at all."""
    if isinstance(experiment, PrivacyExperiment):
        size = IMAGES.size(scale.name)
        empty: Results[Any] = PrivacyResults(experiment, size, size.source, {})
    else:
        empty = AccuracyResults(experiment, scale, scale.source(experiment.track), {})
    return empty.verdicts.count("not run")


def _extent(result: Results[Any]) -> str:
    """Return how much was run: "`cpu`, fashion_mnist: 7 of 35 places, 1 to 3 seeds"."""
    counts = [len(seeds) for seeds in result.measured_at.values()]
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    plural = "" if seeds == "1" else "s"
    return (
        f"`{result.scale.name}`, {result.dataset}: {len(counts)} of {result.experiment.offered} "
        f"places, {seeds} seed{plural}"
    )
