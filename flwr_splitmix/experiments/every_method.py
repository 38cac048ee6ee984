"""Every method of the catalogue of the L shape, with the options that it has by default."""

from __future__ import annotations

from flwr_splitmix.experiments.cells import Value, variant
from flwr_splitmix.experiments.experiment import Entry, Experiment
from flwr_splitmix.methods import METHODS

_NOISE: dict[str, Value] = {"sigma_s": 0.1, "sigma_y": 0.1}
"""Of methods that need noise: with little, so that something is learned."""

EVERY_METHOD = Experiment(
    "methods",
    "every method of this package, with its defaults, on one recipe",
    "this project",
    tuple(
        Entry(name, "ViT-Tiny", variant(name, _NOISE if "noise" in method.needs else {}))
        for method in METHODS
        if method.shape == "L"
        for name in method.names
    ),
    (),
    "Those with noise have standard deviations of 0.1 on smashed data and labels, at which no "
    "epsilon protects anything. Those with frozen edges train with the recipe of the others.",
)
