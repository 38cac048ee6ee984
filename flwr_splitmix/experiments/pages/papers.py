"""Blocks of pages that say which experiments of a paper were run, and how many orderings hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.experiments.experiment import Experiment
from flwr_splitmix.experiments.named import EXPERIMENTS
from flwr_splitmix.experiments.pages.result_files import ResultFile
from flwr_splitmix.experiments.privacy.named import PRIVACY_EXPERIMENTS
from flwr_splitmix.experiments.privacy.tables_of_papers import PrivacyExperiment
from flwr_splitmix.experiments.report import table_of
from flwr_splitmix.experiments.scales import Scale
from flwr_splitmix.experiments.tables import NOTHING, counted, grid

PAGES: dict[str, str] = {
    "CutMixSL": "results/cutmixsl.md",
    "DP-CutMixSL": "results/dp-cutmixsl.md",
    "DP-CutMix workshop paper": "results/workshop.md",
    "Patch Shuffling": "results/patch-shuffling.md",
    "MixGuard": "results/mixguard.md",
    "this project": "results.md",
}
"""By paper, as the sources of experiments name it, the page that its experiments are on."""

AnyExperiment = Experiment | PrivacyExperiment


def experiments_of(paper: str) -> list[AnyExperiment]:
    """Return a paper's experiments.

    Raises
    ------
    ExperimentError
        If it has none.
    """
    every: list[AnyExperiment] = [*EXPERIMENTS.values(), *PRIVACY_EXPERIMENTS.values()]
    own = [experiment for experiment in every if paper_of(experiment) == paper]
    if not own:
        raise ExperimentError(f"no experiment is of {paper!r}; papers are {', '.join(PAGES)}")
    return own


def paper_of(experiment: AnyExperiment) -> str:
    """Return the paper that an experiment's source names first."""
    return experiment.source.partition(",")[0]


def experiments_block(paper: str, results: Sequence[ResultFile]) -> str:
    """Return a table of all experiments of a paper: what was run of each, what it agrees with."""
    rows = []
    for experiment in experiments_of(paper):
        own = [result for result in results if result.experiment.name == experiment.name]
        source = experiment.source.removeprefix(paper).removeprefix(", ")
        head = [f"`{experiment.name}`", experiment.title, source or NOTHING]
        for result in own:
            rows.append([*head, _extent(result), _verdicts(result)])
            head = ["", "", ""]
        if not own:
            rows.append([*head, "not run", NOTHING])
    return "\n".join(grid(("experiment", "shows", "where", "run", "orderings"), rows))


def overview_block(scale: Scale, results: Sequence[ResultFile]) -> str:
    """Return a table of all papers: how much was run at a scale, and how many orderings hold."""
    rows = []
    for paper, page in PAGES.items():
        own = [r for r in results if r.scale == scale and paper_of(r.experiment) == paper]
        every = experiments_of(paper)
        verdicts = Counter(claim.verdict for result in own for claim in result.table.claims)
        run = {result.experiment.name for result in own}
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
    """Return how many orderings of an experiment wait that was not run at all."""
    if isinstance(experiment, PrivacyExperiment):
        offered = {e.place for e in experiment.entries if e.victim is not None}
        return sum(o.low in offered and o.high in offered for o in experiment.orderings)
    table = table_of(experiment, scale, scale.source(experiment.track), 1, {})
    return sum(claim.verdict == "not run" for claim in table.claims)


def _extent(result: ResultFile) -> str:
    """Say how much was run: "`cpu`, fashion_mnist: 7 of 35 places, 1 to 3 seeds"."""
    counts = [len(seeds) for seeds in result.measured_at.values()]
    offered = sum(entry.variant is not None for entry in result.experiment.entries)
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    plural = "" if seeds == "1" else "s"
    return (
        f"`{result.scale.name}`, {result.dataset}: {len(counts)} of {offered} places, "
        f"{seeds} seed{plural}"
    )


def _verdicts(result: ResultFile) -> str:
    return counted(claim.verdict for claim in result.table.claims) or NOTHING
