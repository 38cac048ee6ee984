"""Commands on pages that make a table, and the placeholder of a table not made yet."""

from __future__ import annotations

from collections.abc import Sequence

from flwr_splitmix.experiments.experiment import Experiment
from flwr_splitmix.experiments.privacy.kinds import AnySize
from flwr_splitmix.experiments.privacy.tables_of_papers import PrivacyExperiment
from flwr_splitmix.experiments.scales import COMPOSED, Scale

_NAMED = ("fashion-mnist-small", "generated", COMPOSED)
"""Data sets given by name; others are given by folder, unless they are a hub's (with a slash)."""


def command(
    experiment: Experiment | PrivacyExperiment,
    scale: Scale | AnySize,
    dataset: str,
    seeds: Sequence[int],
) -> list[str]:
    """Return the lines of a code block with the command, followed by an empty line."""
    parts = ["splitmix experiment run", experiment.name, "--scale", scale.name]
    if dataset not in _NAMED and "/" not in dataset:
        parts.append(f"--dataset FOLDER/{dataset}")
    elif dataset != _default(experiment, scale):
        parts.append(f"--dataset {dataset}")
    parts.append(f"--seeds {','.join(map(str, seeds))}")
    return ["```sh", " ".join(parts), "```", ""]


def not_run_block(experiment: Experiment | PrivacyExperiment, scale: Scale | AnySize) -> str:
    """Return the placeholder of a table that has no result file."""
    notice = f"{experiment.source}: {experiment.title}. Scale `{scale.name}`: not run yet."
    return "\n".join(
        [notice, "", *command(experiment, scale, _default(experiment, scale), (0, 1, 2))]
    )


def _default(experiment: Experiment | PrivacyExperiment, scale: Scale | AnySize) -> str:
    if isinstance(scale, Scale):
        assert isinstance(experiment, Experiment)
        return scale.source(experiment.track)
    return scale.source
