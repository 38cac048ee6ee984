"""All experiments on privacy by name."""

from __future__ import annotations

from flwr_splitmix.experiments.papers.privacy_cutmixsl import CUTMIXSL_PRIVACY
from flwr_splitmix.experiments.papers.privacy_dp_cutmixsl import DP_CUTMIXSL_PRIVACY
from flwr_splitmix.experiments.papers.privacy_patch_shuffling import PATCH_SHUFFLING_PRIVACY
from flwr_splitmix.experiments.papers.privacy_workshop import WORKSHOP_PRIVACY
from flwr_splitmix.experiments.privacy.tables_of_papers import PrivacyExperiment

PRIVACY_EXPERIMENTS: dict[str, PrivacyExperiment] = {
    experiment.name: experiment
    for paper in (
        CUTMIXSL_PRIVACY,
        DP_CUTMIXSL_PRIVACY,
        WORKSHOP_PRIVACY,
        PATCH_SHUFFLING_PRIVACY,
    )
    for experiment in paper
}
"""Experiments by name, in the order of the papers; their cells are cells of the matrix."""
