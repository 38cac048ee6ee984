"""A run's directory: what was asked for (config), what happened (metrics), and the summary."""

from __future__ import annotations

import builtins
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.runs.hold import Hold
from flwr_splitmix.runs.metrics_file import Row, read_rows, rows_as_parquet
from flwr_splitmix.runs.places import make_exclusively, run_paths, runs_directory

if TYPE_CHECKING:
    from flwr_splitmix.runs.checkpoints import CheckpointStore

State = Literal["running", "stopped", "failed", "finished"]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_log = logging.getLogger(__name__)


class Run:
    """One run under `<home>/runs/<id>/`; made with `create`, found again with `open` or `list`.

    `home` is the argument if given, else the environment's SPLITMIX_HOME, else ~/.splitmix.
    A run has one writer at a time: whoever has it `held`.

    Attributes
    ----------
    path
        The run's directory: config.json, begun.json, metrics.parquet, record.json, summary.json,
        failure.json, lock, checkpoints/, clients/.
    id
        The directory's name: UTC time, name, four hex digits; 20261120-101500-cutmixsl-3f2a, say.
    config
        What the run was created with, as plain JSON values.

    Raises
    ------
    RunError
        If `path` holds no readable config.json.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.config: Row = _read_object(path / "config.json")
        self._rows: builtins.list[Row] | None = None
        self._hold = Hold(path / "lock", f"run {self.id}")

    def held(self) -> AbstractContextManager[None]:
        """Keep others from running this run, within a `with` block that may be nested.

        Raises
        ------
        RunError
            If another process, or another `Run` of this one, has it: which, where, since when.
        """
        return self._hold.taken()

    def check_free(self) -> None:
        """Raise RunError if somebody is running it."""
        self._hold.check_free()

    @classmethod
    def create(cls, config: Mapping[str, Any], *, name: str, home: str | Path | None = None) -> Run:
        """Make a new run's directory and write `config` into it.

        Raises
        ------
        RunError
            If `name` has no ASCII letter or digit.
        TypeError
            If `config` holds a value that JSON does not know.
        OSError
            If the directory or the file cannot be written; no directory is left then.
        """
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        if not slug:
            raise RunError(f"a run's name needs a letter or a digit, not {name!r}")
        runs = runs_directory(home)
        runs.mkdir(parents=True, exist_ok=True)
        path = make_exclusively(runs, slug)
        try:
            _write_json(path / "config.json", config)
        except BaseException:
            shutil.rmtree(path)
            raise
        return cls(path)

    @classmethod
    def open(cls, run_id: str, *, home: str | Path | None = None) -> Run:
        """Find a run by its id, or the newest one by the word "latest".

        Raises
        ------
        RunError
            If there is no such run, or `run_id` is a path rather than a name.
        """
        runs = runs_directory(home)
        if run_id != "latest":
            if ".." in run_id or not _ID.fullmatch(run_id):
                raise RunError(f"{run_id!r} is not a run's id: an id is a name, not a path")
            if (runs / run_id / "config.json").is_file():
                return cls(runs / run_id)
        paths = run_paths(runs)
        if not paths:
            raise RunError(f"there are no runs in {runs}")
        if run_id != "latest":
            newest = ", ".join(path.name for path in reversed(paths[-10:]))
            raise RunError(f"there is no run {run_id!r} in {runs}; the newest are: {newest}")
        return cls(paths[-1])

    @classmethod
    def list(cls, home: str | Path | None = None) -> builtins.list[Run]:
        """Return all runs, oldest first; a run whose config is damaged is skipped with a warning.

        Raises
        ------
        RunError
            If the directory of the runs exists but cannot be read.
        """
        runs = []
        for path in run_paths(runs_directory(home)):
            try:
                runs.append(cls(path))
            except RunError as error:
                _log.warning("skipped a run: %s", error)
        return runs

    @property
    def rows(self) -> builtins.list[Row]:
        """Metrics so far: one dict a round, every column in every row, None where not measured.

        Raises
        ------
        RunError
            If metrics.parquet is there but cannot be read.
        """
        return [dict(row) for row in self._metrics()]

    def append_round(self, row: Mapping[str, float | int | str | None]) -> None:
        """Add one round's metrics and rewrite metrics.parquet as a whole.

        Integers stay integers and text stays text. Columns beyond the usual ones may be added in
        any round and are null in the others.

        Raises
        ------
        RunError
            If "round" is not an integer after the last one, or a value does not fit its column.
        OSError
            If the file cannot be written; the rounds before this one are intact then.
        """
        rows = self._metrics()
        number = row.get("round")
        if not isinstance(number, int) or isinstance(number, bool):
            raise RunError(f"a row of metrics needs an integer 'round', not {number!r}")
        if rows and number <= rows[-1]["round"]:
            raise RunError(
                f"round {number} cannot follow round {rows[-1]['round']} in run {self.id}; "
                "rewind the run first"
            )
        self._write_metrics([*rows, dict(row)])

    def rewind(self, round: int) -> None:
        """Forget the rounds after `round`, and the summary: the run is unfinished again."""
        rows = self._metrics()
        # The summary goes first: a crash in between leaves a run that is plainly unfinished.
        (self.path / "summary.json").unlink(missing_ok=True)
        kept = [row for row in rows if row["round"] <= round]
        if len(kept) < len(rows):
            self._write_metrics(kept)

    @property
    def begun(self) -> dict[int, int]:
        """How often each round was begun, finished or not."""
        path = self.path / "begun.json"
        counts = _read_object(path) if path.exists() else {}
        return {int(number): int(count) for number, count in counts.items()}

    def begin(self, round: int) -> None:
        """Write down that a round begins: what it sends may have been sent if it is repeated.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        counts = self.begun
        counts[round] = counts.get(round, 0) + 1
        _write_json(self.path / "begun.json", {str(r): count for r, count in counts.items()})

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, which marks the run as finished."""
        _write_json(self.path / "summary.json", summary)

    @property
    def summary(self) -> Row | None:
        """What `write_summary` wrote, or None while the run is unfinished."""
        path = self.path / "summary.json"
        return _read_object(path) if path.exists() else None

    @property
    def status(self) -> State:
        """Where the run stands.

        "finished": it has a summary. Else "running": a process holds it. Else "failed": an error
        ended it, which `failure` says. Else "stopped": it was interrupted, killed, or never begun.
        Where there are no locks, a run that runs looks stopped.
        """
        if (self.path / "summary.json").exists():
            return "finished"
        if self._hold.is_taken():
            return "running"
        return "stopped" if self.failure is None else "failed"

    @property
    def failure(self) -> str | None:
        """The error that ended the run, in a sentence; None if none did since it last began."""
        path = self.path / "failure.json"
        return str(_read_object(path).get("error", "")) if path.exists() else None

    def note_failure(self, error: str | None) -> None:
        """Write down the error that ended the run; None forgets it, as the run begins again.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        path = self.path / "failure.json"
        if error is None:
            path.unlink(missing_ok=True)
        else:
            _write_json(path, {"error": error, "at": datetime.now(UTC).isoformat("T", "seconds")})

    @property
    def label(self) -> str:
        """What the user calls it: the key `label` of its configuration; "" for nothing."""
        return str(self.config.get("label") or "")

    def extend(self, rounds: int) -> None:
        """Have the run's configuration ask for `rounds` rounds, if it asks for fewer.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        asked = self.config.get("num-server-rounds")
        if isinstance(asked, int) and asked < rounds:
            path = self.path / "config.json"
            made = path.stat().st_mtime_ns  # orders the runs of one second
            self.config = {**self.config, "num-server-rounds": rounds}
            _write_json(path, self.config)
            os.utime(path, ns=(made, made))

    @property
    def record(self) -> Row:
        """What clients did and what the server saw, by name of the observer; {} if not written."""
        path = self.path / "record.json"
        return _read_object(path) if path.exists() else {}

    @property
    def mixtures(self) -> Row:
        """The mixtures that were kept of the newest round; {} if none were."""
        path = self.path / "mixtures.json"
        return _read_object(path) if path.exists() else {}

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Write record.json, which outlives the process but not a loss of power.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        from flwr_splitmix.storage import write_atomic  # as in _write_metrics

        write_atomic(self.path / "record.json", json.dumps(record).encode(), flush=False)

    @property
    def checkpoints(self) -> CheckpointStore:
        """The server's checkpoints, in checkpoints/."""
        from flwr_splitmix.runs.checkpoints import (
            CheckpointStore,  # loads torch: only when asked for
        )

        return CheckpointStore(self.path / "checkpoints")

    @property
    def clients_dir(self) -> Path:
        """Where the clients' states go, see `ClientStore`."""
        return self.path / "clients"

    def _metrics(self) -> builtins.list[Row]:
        if self._rows is None:
            self._rows = read_rows(self.path / "metrics.parquet")
        return self._rows

    def _write_metrics(self, rows: builtins.list[Row]) -> None:
        from flwr_splitmix.storage import write_atomic  # loads torch: not needed to read a run

        data, self._rows = rows_as_parquet(rows)
        write_atomic(self.path / "metrics.parquet", data)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    from flwr_splitmix.storage import write_json  # as in _write_metrics

    write_json(path, dict(value))


def _read_object(path: Path) -> Row:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise RunError(f"cannot read {path}: it holds no JSON object")
    return value
