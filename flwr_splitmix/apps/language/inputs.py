"""A language run's record of its classes, which words as labels have by their sorted order."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from flwr_splitmix.apps.kept.inputs import INPUTS, check_unchanged
from flwr_splitmix.apps.language.config import LanguageConfig
from flwr_splitmix.data import DataError
from flwr_splitmix.data.texts.sets import classes_of_texts
from flwr_splitmix.files.writing import write_json
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.damage import read_object, unreadable

log = logging.getLogger("flwr.splitmix")


def record_inputs(run: Run, config: LanguageConfig) -> None:
    """Record the classes in a run's directory, if its texts have classes and are on this machine.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    if classes := _classes_here(config):
        write_json(run.path / INPUTS, {"classes": classes})


def check_inputs(run: Run, config: LanguageConfig) -> None:
    """Check that a resumed run's classes are those that it began with, if both are known here.

    Raises
    ------
    RunError
        If they differ, or the record cannot be read.
    """
    file = run.path / INPUTS
    if not file.exists() or not (classes := _classes_here(config)):
        return
    recorded = read_object(file).get("classes")
    if not isinstance(recorded, list) or not all(isinstance(name, str) for name in recorded):
        raise unreadable(file, f"classes is {recorded!r:.80}, which is not a list of names")
    check_unchanged(run, config.dataset, {"classes": recorded}, {"classes": classes})


def _classes_here(config: LanguageConfig) -> list[str]:
    """Return the classes of a file or folder on this machine; SuperNodes may have texts elsewhere.

    Nothing is fetched from the hub, where a data set does not change unnoticed.
    """
    exists = config.dataset and os.path.exists(Path(config.dataset).expanduser())
    if config.task != "classification" or not exists:
        return []
    try:
        return list(
            classes_of_texts(
                config.dataset,
                columns=config.columns(),
                test=config.test_dataset,
                num_labels=config.num_labels,
            )
        )
    except DataError as error:
        log.info("the run's classes are not compared when it is resumed: %s", error)
        return []
