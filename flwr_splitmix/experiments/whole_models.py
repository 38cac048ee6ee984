"""Costs and savings of splitting: split learning and whole models on the same budget."""

from __future__ import annotations

from flwr_splitmix.experiments.cells import variant
from flwr_splitmix.experiments.experiment import Entry, Experiment
from flwr_splitmix.experiments.papers.cutmixsl import BEST

WHOLE_MODELS = Experiment(
    "baselines",
    "what splitting costs and saves: accuracy, bytes, client memory, multiply-adds",
    "this project",
    tuple(
        Entry(method, "ViT-Tiny", variant(method, options))
        for method, options in (
            ("Standalone", {}),
            ("PSL", {}),
            ("SFL", {}),
            ("CutMixSL", BEST),
            ("CutMixSFL", BEST),
            ("FedAvg", {}),
            ("Unsplit", {}),
        )
    ),
    (),
    "Standalone: every client trains a whole model on its own data. FedAvg: one local epoch a "
    "round, Flower's average of whole models. Unsplit: one whole model on all clients' data, with "
    "n times the batch size, so with as many steps; its data would have to be sent once.",
)
