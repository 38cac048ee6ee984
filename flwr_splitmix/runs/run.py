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

import pyarrow as pa
import pyarrow.parquet as pq

from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.runs.hold import Hold

if TYPE_CHECKING:
    from flwr_splitmix.runs.checkpoints import CheckpointStore

Row = dict[str, Any]

# Columns every metrics file has, with one type even while all values are null.
_COLUMNS: dict[str, pa.DataType | None] = {
    "round": pa.int64(),
    "loss": pa.float64(),
    "accuracy": pa.float64(),
    "accuracy_kind": pa.string(),
    "eval_loss": pa.float64(),
    "seconds": pa.float64(),
    "steps": pa.int64(),
    "uplink_bytes": pa.int64(),
    "downlink_bytes": pa.int64(),
    "uplink_bytes_psl": pa.int64(),
    "clients_alive": pa.int64(),
    "clients_failed": pa.int64(),
    "slowest_node": None,  # a name or a Flower node id: as its values are
    "steps_per_second": pa.float64(),
}
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_log = logging.getLogger(__name__)


class Run:
    """One run under `<home>/runs/<id>/`; made with `create`, found again with `open` or `list`.

    `home` is the argument if given, else the environment's SPLITMIX_HOME, else ~/.splitmix.
    A run has one writer at a time: whoever has it `held`.

    Attributes
    ----------
    path
        The run's directory: config.json, begun.json, metrics.parquet, summary.json, lock,
        checkpoints/, clients/.
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
        runs = _runs_directory(home)
        runs.mkdir(parents=True, exist_ok=True)
        path = _make_exclusively(runs, slug)
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
        runs = _runs_directory(home)
        if run_id != "latest":
            if ".." in run_id or not _ID.fullmatch(run_id):
                raise RunError(f"{run_id!r} is not a run's id: an id is a name, not a path")
            if (runs / run_id / "config.json").is_file():
                return cls(runs / run_id)
        paths = _run_paths(runs)
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
        found = []
        for path in _run_paths(_runs_directory(home)):
            try:
                found.append(cls(path))
            except RunError as error:
                _log.warning("skipped a run: %s", error)
        return found

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
    def status(self) -> Literal["finished", "unfinished"]:
        """Whether the run has a summary."""
        return "finished" if (self.path / "summary.json").exists() else "unfinished"

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
            path = self.path / "metrics.parquet"
            try:
                # A buffer, not the path: a path may be memory-mapped while it is replaced.
                self._rows = pq.read_table(pa.py_buffer(path.read_bytes())).to_pylist()
            except FileNotFoundError:
                self._rows = []
            except (OSError, pa.ArrowException) as error:
                raise RunError(f"cannot read {path}: {error}") from error
        return self._rows

    def _write_metrics(self, rows: builtins.list[Row]) -> None:
        from flwr_splitmix.storage import write_atomic  # loads torch: not needed to read a run

        table = _table(rows)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        write_atomic(self.path / "metrics.parquet", sink.getvalue().to_pybytes())
        self._rows = table.to_pylist()


def _table(rows: builtins.list[Row]) -> pa.Table:
    columns = {}
    for name in dict.fromkeys([*_COLUMNS, *(name for row in rows for name in row)]):
        values = [row.get(name) for row in rows]
        kind = _COLUMNS.get(name)
        # Flower's node ids need all 64 bits, and Arrow infers a signed type.
        if kind is None and any(isinstance(value, int) and value >= 2**63 for value in values):
            kind = pa.uint64()
        try:
            columns[name] = pa.array(values, type=kind)
            # Arrow drops the fraction of a number without a word.
            if (
                kind is not None
                and pa.types.is_integer(kind)
                and columns[name].to_pylist() != values
            ):
                raise TypeError("it is no integer")
        except (pa.ArrowException, TypeError, OverflowError) as error:
            reason = str(error).partition("\n")[0]
            raise RunError(f"{values[-1]!r} does not fit column {name!r}: {reason}") from error
    return pa.table(columns)


def _runs_directory(home: str | Path | None) -> Path:
    chosen = home or os.environ.get("SPLITMIX_HOME") or "~/.splitmix"
    return Path(chosen).expanduser() / "runs"


def _run_paths(runs: Path) -> builtins.list[Path]:
    """List the runs' directories, oldest first."""

    def age(path: Path) -> tuple[str, int]:
        # An id's time is in whole seconds; config.json, written once, orders runs within one.
        return path.name[:15], (path / "config.json").stat().st_mtime_ns

    try:
        return sorted((p for p in runs.iterdir() if (p / "config.json").is_file()), key=age)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {runs}: {error.strerror}") from error


def _make_exclusively(runs: Path, slug: str) -> Path:
    while True:
        path = runs / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{slug}-{os.urandom(2).hex()}"
        try:
            path.mkdir()
            return path
        except FileExistsError:
            continue  # four other digits, then


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
