"""The papers' tables and figures as named experiments.

Importing this package does not load torch; the modules that need it are imported to run cells.
"""

from flwr_splitmix.experiments.cells import Cell, ExperimentError, Recipe, Variant, variant
from flwr_splitmix.experiments.experiment import Entry, Experiment, Ordering
from flwr_splitmix.experiments.named import EXPERIMENTS, experiment_named
from flwr_splitmix.experiments.scales import SCALES, Scale, scale_named

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "Cell",
    "Entry",
    "Experiment",
    "ExperimentError",
    "Ordering",
    "Recipe",
    "Scale",
    "Variant",
    "experiment_named",
    "scale_named",
    "variant",
]
