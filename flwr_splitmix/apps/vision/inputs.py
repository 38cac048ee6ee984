"""A run's record of its inputs: class names, and the preprocessing of images."""

from __future__ import annotations

import json
from typing import Any

from flwr_splitmix.apps.vision.config import VisionConfig
from flwr_splitmix.apps.vision.data import images_of
from flwr_splitmix.data import ImageSets
from flwr_splitmix.data.images.preprocessing import Preprocessing
from flwr_splitmix.files import write_json
from flwr_splitmix.runs import Run
from flwr_splitmix.storage import StorageError

INPUTS = "inputs.json"
"""The file's name in a run's directory."""


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

    For a run of an earlier version, which has no record, it is made from the images.

    Raises
    ------
    StorageError
        If the record cannot be read.
    DataError
        If there is none, and the images cannot be read.
    """
    file = run.path / INPUTS
    try:
        recorded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _described(images_of(config))
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {file}: {error}") from error
    return recorded


def _described(images: ImageSets) -> dict[str, Any]:
    return {
        "classes": list(images.classes),
        **({"multi_label": True} if images.multi_label else {}),
        "preprocessing": Preprocessing.of(images.train).facts(),
    }
