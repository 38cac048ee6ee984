"""Every method of the catalogue of the L shape, with the options that it has by default."""

from __future__ import annotations

from flwr_splitmix.experiments.cells import Value, variant
from flwr_splitmix.experiments.experiment import Entry, Experiment
from flwr_splitmix.methods import METHODS, Method

_NOISE: dict[str, Value] = {"sigma_s": 0.1, "sigma_y": 0.1}
"""Of methods that need noise: little of it, so that something is learned."""


def _entry(name: str, method: Method) -> Entry:
    # A frozen edge holds a block: of the ViT-Tiny of scale smoke, which has one, none is left.
    model = "T2T-ViT-24" if "labels" in method.needs else "ViT-Tiny"
    options = _NOISE if "noise" in method.needs else {}
    return Entry(name, model, variant(name, options, model=model))


EVERY_METHOD = Experiment(
    "methods",
    "every method of this package, with its defaults, on one recipe",
    "this project",
    tuple(
        _entry(name, method) for method in METHODS if method.shape == "L" for name in method.names
    ),
    (),
    "Those with noise have standard deviations of 0.1 on smashed data and labels, at which no "
    "epsilon protects anything. Those with frozen edges have the model of Patch Shuffling's "
    "tables, and the recipe of the others.",
)
