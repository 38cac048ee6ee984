"""Files of a run that cannot be read: errors that say what can be done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flwr_splitmix.runs.errors import RunError

_REMEDIES = {
    "begun.json": "restore it; without it epsilon lacks what interrupted rounds have sent",
    "config.json": "restore it, or remove the run's folder",
    "failure.json": "remove it; it only says which error ended the run",
    "metrics.parquet": "restore it, or remove it: the rounds so far are then missing from tables",
    "mixtures.json": "remove it; the report then shows no mixtures",
    "recording.json": "remove the folder that it is in, and record again (record-attacks)",
    "record.json": "remove it; the report then lacks the clients' times and the messages",
    "summary.json": "remove it: the run is then unfinished, and resuming it writes it again",
}


def unreadable(path: Path, reason: object) -> RunError:
    """Return the error of a file of a run that cannot be read, with the remedy."""
    remedy = _REMEDIES.get(path.name)
    return RunError(f"cannot read {path}: {reason}" + (f"; {remedy}" if remedy else ""))


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises
    ------
    RunError
        If the file cannot be read, or holds anything else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if not isinstance(value, dict):
        raise unreadable(path, "it holds no JSON object")
    return value
