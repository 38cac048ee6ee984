"""A run's record of its inputs: class names, and the preprocessing of images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr_splitmix.apps.kept.inputs import INPUTS, check_unchanged
from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.data import DataError, ImageSets
from flwr_splitmix.data.images.preprocessing import Preprocessing
from flwr_splitmix.files.writing import write_json
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.damage import read_object, unreadable


def record_inputs(run: Run, images: ImageSets) -> None:
    """Record the classes and the preprocessing of a run's images in its directory.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    write_json(run.path / INPUTS, _described(images))


def recorded_inputs(run: Run, config: VisionConfig) -> dict[str, Any]:
    """Return the record: {"classes", "preprocessing"}, and "multi_label": true if it is.

    If there is none, as where a damaged one was removed, it is made from the images.

    Raises
    ------
    RunError
        If the record cannot be read, or lacks something; the message names the remedy.
    DataError
        If there is none, and the images cannot be read.
    """
    file = run.path / INPUTS
    if not file.exists():
        return _described(images_of(config))
    recorded = read_object(file)
    _check(file, recorded)
    return recorded


def check_inputs(run: Run, config: VisionConfig) -> None:
    """Check that the images are those that a resumed run began with, as far as was recorded.

    Raises
    ------
    RunError
        If classes or preprocessing differ, or the record cannot be read.
    DataError
        If the images cannot be read.
    """
    recorded, present = recorded_inputs(run, config), _described(images_of(config))
    check_unchanged(run, config.dataset, _plain(recorded), _plain(present))


def _plain(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with all of its fields, each of the same types."""
    return {
        "classes": described["classes"],
        "multi_label": described.get("multi_label", False),
        "preprocessing": Preprocessing.from_facts(described["preprocessing"]).facts(),
    }


def _check(file: Path, recorded: dict[str, Any]) -> None:
    classes, several = recorded.get("classes"), recorded.get("multi_label", False)
    if not isinstance(classes, list) or not classes or not all(isinstance(c, str) for c in classes):
        raise unreadable(file, f"classes is {classes!r:.80}, which is not a list of names")
    if not isinstance(several, bool):
        raise unreadable(file, f"multi_label is {several!r:.80}, which is neither true nor false")
    try:
        Preprocessing.from_facts(recorded.get("preprocessing", {}))
    except DataError as error:
        raise unreadable(file, f"preprocessing: {error}") from error


def _described(images: ImageSets) -> dict[str, Any]:
    return {
        "classes": list(images.classes),
        **({"multi_label": True} if images.multi_label else {}),
        "preprocessing": Preprocessing.of(images.train).facts(),
    }
