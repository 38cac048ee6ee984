"""A run's configuration: config.json, which makes a folder a run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr_splitmix.files.json_values import marked, strict_json
from flwr_splitmix.files.writing import write_json
from flwr_splitmix.runs.damage import read_config, read_object
from flwr_splitmix.runs.metrics_file import Row
from flwr_splitmix.words import printable


def as_written(config: Mapping[str, Any]) -> Any:
    """Return a configuration as config.json has it: plain JSON values, NaN and infinities marked.

    Raises
    ------
    TypeError
        If a value is none that JSON can represent; the message names its key.
    """
    return marked(_plain(config))


class ConfigFile:
    """A run's configuration, and its file.

    Attributes
    ----------
    values
        The configuration, as plain JSON values, and NaN and infinities.
    reconciled
        Whether `values` was compared with the keys given to resume the run, and those ignored were
        logged, as the apps do; otherwise the strategy does it.

    Raises
    ------
    RunError
        If the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.values: Row = read_config(path)
        self.reconciled = False

    @property
    def label(self) -> str:
        """The user's name for the run: the key `label`; "" if none."""
        return printable(str(self.values.get("label") or ""))

    @property
    def removed(self) -> bool:
        """Whether the file, without which no command sees the run, has been removed since."""
        try:
            self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # a network file system that is away for a while
            return False
        return False

    def reconcile(self, values: Row) -> None:
        """Continue with a configuration that was compared with the given keys; write nothing."""
        self.values = values
        self.reconciled = True

    def extended(self, rounds: int) -> Row:
        """Return `values` with their number of rounds raised to `rounds`, if it is lower."""
        num_rounds = self.values.get("num-server-rounds")
        if isinstance(num_rounds, int) and num_rounds < rounds:
            return {**self.values, "num-server-rounds": rounds}
        return self.values

    def extend(self, rounds: int) -> None:
        """Raise the number of rounds in `values` to `rounds`, if it is lower, and write `values`.

        They may have other addresses and time limits than when the run began.

        Raises
        ------
        RunError, OSError
            If the present configuration cannot be read, or the new one not written.
        """
        self.values = self.extended(rounds)
        marked_values = marked(self.values)
        if json.loads(strict_json(marked_values)) != read_object(self._path):
            modified_at = self._path.stat().st_mtime_ns  # orders runs of the same second
            write_json(self._path, marked_values)
            os.utime(self._path, ns=(modified_at, modified_at))


def _plain(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration as JSON values; raise TypeError, with the key, if one cannot be."""
    try:
        strict_json(config)
    except TypeError:
        from flwr_splitmix.storage import json_values  # loads torch, so only on demand

        plain: Mapping[str, Any] = json_values(config, "config")
        return plain
    return config
