"""The trackers by name, and the packages that they need."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from flwr_splitmix.extras import how_to_install
from flwr_splitmix.observers.mixtures import KeptMixtures
from flwr_splitmix.observers.trackers.tracker import Tracker


class TrackerError(ValueError):
    """A requested tracker is not available; the message names the remedy."""


class _Known(NamedTuple):
    """A tracker's module and factory, the package that it needs, and the extra that installs it.

    `silent` are the variable, and its value, that keep the package from sending usage to its
    makers: they are set before it is imported, unless the environment has the variable.
    """

    module: str
    make: str
    package: str = ""
    extra: str = ""
    silent: tuple[str, str] | None = None


_WANDB = ("wandb", "wandb", ("WANDB_ERROR_REPORTING", "false"))


_KNOWN = {
    "csv": _Known("csv_file", "CsvTracker"),
    "tensorboard": _Known("tensorboard", "TensorBoardTracker", "tensorboard", "tensorboard"),
    "wandb": _Known("weights_and_biases", "WandbTracker", *_WANDB),
    "wandb-offline": _Known("weights_and_biases", "offline", *_WANDB),
    "mlflow": _Known(
        "mlflow", "MlflowTracker", "mlflow", "mlflow", ("MLFLOW_DISABLE_TELEMETRY", "true")
    ),
}

TRACKERS = tuple(_KNOWN)
"""Names of the trackers."""


def split_names(names: str) -> list[str]:
    """Return the names in a comma-separated text.

    Raises
    ------
    TrackerError
        If one is unknown, or given twice.
    """
    tracker_names = [name.strip() for name in names.split(",")] if names.strip() else []
    for name in tracker_names:
        if name not in _KNOWN:
            raise TrackerError(
                f"{name!r} is not a tracker; use {', '.join(TRACKERS)}, or several of "
                "them with commas between"
            )
    packages = [_KNOWN[name].module for name in tracker_names]
    if len(set(packages)) < len(packages):
        raise TrackerError(f"{names!r} names a tracker twice")
    return tracker_names


def make_trackers(names: str, mixtures: KeptMixtures | None = None) -> list[Tracker]:
    """Make the trackers named in a comma-separated text; nothing is written yet.

    Parameters
    ----------
    mixtures
        The mixtures whose images trackers send; None for none.

    Raises
    ------
    TrackerError
        If a name is unknown or given twice, or its package is not installed (the message names the
        extra to install).
    """
    trackers = []
    for name in split_names(names):
        registration = _KNOWN[name]
        if registration.package and find_spec(registration.package) is None:
            raise TrackerError(
                f"tracker {name!r} needs {registration.package}, which is not installed: "
                f"{how_to_install(registration.extra)}"
            )
        if registration.silent is not None:
            os.environ.setdefault(*registration.silent)
        module = import_module(f"flwr_splitmix.observers.trackers.{registration.module}")
        make: Callable[[], Tracker] = getattr(module, registration.make)
        tracker = make()
        tracker.mixtures = mixtures
        trackers.append(tracker)
    return trackers
