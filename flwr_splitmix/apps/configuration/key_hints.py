"""Which key of an app an unknown one may mean: other programs' names, then similar spelling."""

from __future__ import annotations

from collections.abc import Iterable

from flwr_splitmix.suggestions import close_to, folded_key, is_near

MEANINGS = {
    "lr": ("learning-rate", "initial-lr", "base-lr", "client-lr", "local-lr", "step-size"),
    "num-server-rounds": ("rounds", "num-rounds", "n-rounds", "server-rounds"),
    "epochs-per-round": ("epochs", "local-epochs", "num-epochs", "n-epochs", "max-epochs"),
    "steps-per-round": ("steps", "local-steps", "num-steps", "max-steps"),
    "batch-size": ("batch", "bs", "train-batch-size", "local-batch-size"),
    "weight-decay": ("wd", "decay", "l2"),
    "warmup-epochs": ("warmup", "warmup-steps"),
    "seed": ("random-seed", "random-state", "manual-seed"),
    "strategy": ("method", "algorithm"),
    "aggregator": ("aggregation", "server-optimizer"),
    "k": ("group-size", "num-mixed"),
    "sigma-s": ("sigma", "noise", "noise-std"),
    "epsilon": ("eps", "target-epsilon"),
    "max-epsilon": ("eps", "target-epsilon", "privacy-budget"),
    "model": ("arch", "architecture", "backbone", "net", "network", "model-name"),
    "image-size": ("img-size", "input-size", "resolution"),
    "head-layers": ("cut", "cut-layer", "split-layer", "split-at"),
    "tail-layers": ("cut", "cut-layer", "split-layer", "split-at"),
    "cut-at": ("cut", "cut-layer", "split-layer", "split-at"),
    "dataset": ("data", "data-dir", "data-path", "train-data", "dataset-name"),
    "test-dataset": ("test-data", "test-set"),
    "num-labels": ("num-classes", "n-classes", "classes"),
    "max-length": ("max-len", "seq-len", "seq-length", "sequence-length"),
    "lora-rank": ("lora-r", "rank"),
    "partition": ("partitioner", "partitioning", "distribution", "iid", "non-iid"),
    "partition-alpha": ("dirichlet-alpha",),
    "samples-per-client": ("samples", "num-samples"),
    "fraction-train": ("fraction", "fraction-fit", "participation", "participation-rate"),
    "min-nodes": ("min-clients", "min-available-clients", "min-available-nodes", "min-fit-clients"),
    "evaluation": ("eval", "evaluate"),
    "evaluate-every": ("eval-every", "eval-interval", "test-every"),
    "device": ("gpu", "cuda", "use-cuda", "use-gpu"),
    "precision": ("amp", "mixed-precision", "fp16", "bf16"),
    "dtype": ("torch-dtype",),
    "label": ("name", "run-name", "experiment-name"),
    "tracker": ("wandb", "tensorboard", "mlflow", "logger"),
    "run-dir": ("output-dir", "out-dir", "save-dir", "log-dir", "results-dir"),
    "checkpoint-every": ("checkpoint", "save-every", "checkpoint-interval"),
}
"""Keys of the apps, each with what other programs call it."""

_CLIENTS = {
    count + many
    for count in ("", "num", "n", "numberof")
    for many in ("clients", "nodes", "supernodes", "users", "parties")
}
"""Folded names for the number of clients."""


def means_clients(key: str) -> bool:
    """Return whether a key seems to be the number of clients, which Flower knows."""
    return folded_key(key) in _CLIENTS


def likely_keys(key: str, allowed_keys: Iterable[str]) -> list[str]:
    """Return the keys that an unknown one may mean, the likeliest first.

    They are those spelt alike but for case, "-" and "_"; else those that other programs call so;
    else those with a similar spelling; else those whose other
    name is one letter away.
    """
    names, folded = list(allowed_keys), folded_key(key)
    if same := [name for name in names if folded_key(name) == folded]:
        return same
    called = {name: [folded_key(other) for other in others] for name, others in MEANINGS.items()}
    if meant := [name for name, others in called.items() if folded in others and name in names]:
        return meant
    return close_to(key, names) or [
        name
        for name, others in called.items()
        if name in names and any(is_near(folded, other) for other in others)
    ]
