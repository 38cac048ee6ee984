"""All methods of the L shape in the catalogue, with their default options."""

from __future__ import annotations

from flwr_splitmix.experiments.cells import Value, variant
from flwr_splitmix.experiments.experiment import Entry, Experiment
from flwr_splitmix.methods import METHODS, Method

_NOISE: dict[str, Value] = {"sigma_s": 0.1, "sigma_y": 0.1}
"""Options of methods that need noise, small enough for training to succeed."""


def _entry(name: str, method: Method) -> Entry:
    # A frozen edge takes one block, and the ViT-Tiny of scale smoke has only one.
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
    "Those with noise clip each patch to norm 1 and have standard deviations of 0.1 on smashed "
    "data and labels, at which no epsilon protects anything. Those with frozen edges have the "
    "model of Patch Shuffling's tables (T2T-ViT-24 is the paper's name of it; at scale `cpu` it is "
    "a small ViT with random weights), and the recipe of the others.",
)
