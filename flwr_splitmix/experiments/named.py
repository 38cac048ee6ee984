"""All experiments by name."""

from __future__ import annotations

import difflib

from flwr_splitmix.experiments.cells import ExperimentError
from flwr_splitmix.experiments.every_method import EVERY_METHOD
from flwr_splitmix.experiments.experiment import Experiment
from flwr_splitmix.experiments.papers.cutmixsl import CUTMIXSL
from flwr_splitmix.experiments.papers.dp_cutmixsl import DP_CUTMIXSL
from flwr_splitmix.experiments.papers.dp_cutmixsl_utility import WITH_NOISE
from flwr_splitmix.experiments.papers.mixguard_ablations import ABLATIONS
from flwr_splitmix.experiments.papers.mixguard_answers import ANSWERS
from flwr_splitmix.experiments.papers.mixguard_cola import LANGUAGE
from flwr_splitmix.experiments.papers.mixguard_costs import TABLE_6 as MIXGUARD_COSTS
from flwr_splitmix.experiments.papers.mixguard_curve import CURVES
from flwr_splitmix.experiments.papers.mixguard_mixing import MIXING
from flwr_splitmix.experiments.papers.mixguard_sets import SETS
from flwr_splitmix.experiments.papers.patch_shuffling import PATCH_SHUFFLING
from flwr_splitmix.experiments.papers.workshop import WORKSHOP
from flwr_splitmix.experiments.whole_models import WHOLE_MODELS

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for paper in (
        CUTMIXSL,
        DP_CUTMIXSL,
        WITH_NOISE,
        WORKSHOP,
        PATCH_SHUFFLING,
        LANGUAGE,
        CURVES,
        ABLATIONS,
        (MIXGUARD_COSTS,),
        MIXING,
        ANSWERS,
        SETS,
        (WHOLE_MODELS, EVERY_METHOD),
    )
    for experiment in paper
}
"""Experiments by name, in the order of the papers, each of which has its own files."""


def experiment_named(name: str) -> Experiment:
    """Return the experiment with a name.

    Raises
    ------
    ExperimentError
        If there is none; the message lists similar names, or all, including those on privacy.
    """
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    from flwr_splitmix.experiments.privacy.named import PRIVACY_EXPERIMENTS  # imports this package

    if name in PRIVACY_EXPERIMENTS:
        raise ExperimentError(f"{name!r} is an experiment on privacy, not on accuracy")
    names = [*EXPERIMENTS, *PRIVACY_EXPERIMENTS]
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"available: {', '.join(names)}"
    raise ExperimentError(f"unknown experiment {name!r}; {hint}")
