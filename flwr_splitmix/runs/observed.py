"""Files of observers in a run's folder: record.json, and mixtures.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flwr_splitmix.files.json_values import strict_json
from flwr_splitmix.files.writing import write_atomic
from flwr_splitmix.runs.damage import check_mixtures, check_record, read_object
from flwr_splitmix.runs.metrics_file import Row


def read_record(folder: Path) -> Row:
    """Return observers' records of clients and server; {} if there are none.

    Raises
    ------
    RunError
        If they cannot be read, or have other fields than observers write.
    """
    return _read(folder / "record.json", check_record)


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write observers' records, which survive the process but not a power loss.

    Raises
    ------
    OSError
        If they cannot be written.
    """
    write_atomic(folder / "record.json", strict_json(record).encode(), flush=False)


def read_mixtures(folder: Path) -> Row:
    """Return the mixtures kept from the newest round; {} if none were kept.

    Raises
    ------
    RunError
        If they cannot be read, or have other fields than their observer writes.
    """
    return _read(folder / "mixtures.json", check_mixtures)


def _read(path: Path, check: Callable[[Path, Row], None]) -> Row:
    if not path.exists():
        return {}
    written = read_object(path)
    check(path, written)
    return written
