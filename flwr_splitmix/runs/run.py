"""A run's directory: configuration, metrics and summary."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flwr_splitmix.files import marked, strict_json, write_atomic, write_json
from flwr_splitmix.runs.begun import Begun, append_begun, read_begun
from flwr_splitmix.runs.damage import (
    check_mixtures,
    check_record,
    printable,
    read_config,
    read_object,
    read_summary,
)
from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.runs.hold import Hold
from flwr_splitmix.runs.metrics_file import MetricsFile, Row
from flwr_splitmix.runs.places import check_label, find_run, new_run, run_paths, runs_directory
from flwr_splitmix.values import check_kind

if TYPE_CHECKING:
    from flwr_splitmix.runs.checkpoints import CheckpointStore

State = Literal["running", "stopped", "failed", "finished"]

_log = logging.getLogger("flwr.splitmix")


class Run:
    """One run under `<home>/runs/<id>/`; created with `create`, found with `open` or `all`.

    `home` is the argument if given, else the environment variable SPLITMIX_HOME, else ~/.splitmix.
    A run has one writer at a time, the process that holds its lock (`held`).

    Attributes
    ----------
    path
        The run's directory: config.json, begun.jsonl, metrics.parquet, record.json, summary.json,
        failure.json, lock, checkpoints/, clients/; of some runs also metrics.jsonl, inputs.json,
        mixtures.json, attacks/.
    id
        The directory's name: UTC time, name, four hex digits; e.g. 20261120-101500-cutmixsl-3f2a.
    config
        The run's configuration, as plain JSON values.
    new
        Whether this process has created it; otherwise it was opened, and may have begun before.
    reconciled
        Whether `config` was compared with the keys given to resume the run, and those ignored were
        logged, as the apps do; otherwise the strategy does it.

    Raises
    ------
    RunError
        If `path` holds no readable config.json.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = printable(path.name)
        self.config: Row = read_config(path / "config.json")
        self.new = False
        self.reconciled = False
        self._metrics = MetricsFile(path)
        self._hold = Hold(path / "lock", f"run {self.id}")

    def held(self) -> AbstractContextManager[None]:
        """Lock this run within a `with` block, which may be nested.

        Raises
        ------
        RunError
            If another process, or another `Run` object of this process, holds the lock; the message
            states which process, on which host and since when.
        """
        return self._hold.taken()

    def check_free(self) -> None:
        """Raise RunError if another process executes the run."""
        self._hold.check_free()

    @classmethod
    def create(cls, config: Mapping[str, Any], *, name: str, home: str | Path | None = None) -> Run:
        """Create a new run's directory and write `config` into it.

        JSON has no NaN and no infinity: in the file they are marked, and `config` has them again.

        Raises
        ------
        RunError
            If `name` has no ASCII letter or digit, or more than 200 characters, `config` has the
            label "latest", or the directory or the file cannot be written; no directory is left
            behind.
        TypeError
            If `name` is no text, `config` no dictionary, or one of its values none that JSON can
            represent.
        """
        check_kind("name", name, str, "a text, such as 'baseline'")
        check_kind("config", config, Mapping, "a dictionary, the run's configuration")
        check_label(config.get("label"))
        run = cls(new_run(name, marked(_plain(config)), home))
        run.new = True
        return run

    @classmethod
    def open(cls, run_id: str, *, home: str | Path | None = None) -> Run:
        """Return the run with this id, or the newest one for "latest".

        Raises
        ------
        RunError
            If there is no such run, or `run_id` is a path rather than a name.
        """
        return cls(find_run(run_id, home))

    @classmethod
    def all(cls, home: str | Path | None = None) -> list[Run]:
        """Return all runs, oldest first; runs with a damaged config are skipped with a warning.

        Raises
        ------
        RunError
            If the directory of runs exists but cannot be read.
        """
        runs = []
        for path in run_paths(runs_directory(home)):
            try:
                runs.append(cls(path))
            except RunError as error:
                _log.warning("skipped a run: %s", printable(str(error)))
        return runs

    @property
    def rows(self) -> list[Row]:
        """Metrics so far: one dict per round, with all columns, None if not measured.

        Raises
        ------
        RunError
            If metrics.parquet or metrics.jsonl exists but cannot be read.
        """
        return self._metrics.rows

    def append_round(self, row: Mapping[str, float | int | str | None]) -> None:
        """Add one round's metrics; they are on the disk when this returns.

        Integers stay integers and text stays text. Further columns may be added in any round and
        are null in the others.

        Raises
        ------
        RunError
            If "round" is not an integer after the last one, or a value does not fit its column.
        OSError
            If they cannot be written; earlier rounds are then intact.
        """
        number, last = row.get("round"), self._metrics.last_round
        if not isinstance(number, int) or isinstance(number, bool):
            raise RunError(f"a row of metrics needs an integer 'round', not {number!r}")
        if last is not None and number <= last:
            raise RunError(
                f"round {number} cannot follow round {last} in run {self.id}; rewind the run first"
            )
        self._metrics.append(dict(row))

    def rewind(self, round: int) -> None:
        """Remove the rounds after `round` and the summary: the run is unfinished again."""
        last = self._metrics.last_round
        # Remove the summary first: a crash in between then leaves an unfinished run.
        (self.path / "summary.json").unlink(missing_ok=True)
        if last is not None and last > round:
            self._metrics.keep(round)

    @property
    def begun(self) -> list[Begun]:
        """The training and the evaluation of rounds in the order in which they began."""
        return read_begun(self.path / "begun.jsonl")

    def begin(
        self,
        round: int,
        clients: Iterable[int],
        *,
        evaluates: bool = False,
        again: Collection[int] = (),
        steps: int | None = None,
        protection: str = "",
    ) -> None:
        """Record what begins, so that a repeated round counts its uploads as sent before.

        Parameters
        ----------
        again
            Those of `clients` that did not finish the round that they began before.
        steps
            Most batches that training asks a client for; None if that is not known.
        protection
            What stands for the mixer and the noise of what is sent; "" if that is not known.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        asked = sorted(clients)
        repeat = [client for client in asked if client in again]
        append_begun(
            self.path / "begun.jsonl", Begun(round, asked, evaluates, repeat, steps, protection)
        )

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Complete metrics.parquet and write summary.json, which marks the run as finished."""
        self._metrics.complete()
        _write_json(self.path / "summary.json", summary)

    @property
    def summary(self) -> Row | None:
        """The summary written by `write_summary`, or None while the run is unfinished."""
        path = self.path / "summary.json"
        return read_summary(path) if path.exists() else None

    @property
    def status(self) -> State:
        """The run's state.

        "finished": it has a summary, until clients take part in a round that is added. Otherwise
        "running": a process holds its lock. Otherwise
        "failed": an error ended it (see `failure`). Otherwise "stopped": it was interrupted,
        killed, or never begun. Without file locks, a running run looks stopped.
        """
        if (self.path / "summary.json").exists():
            return "finished"
        if self._hold.is_taken():
            return "running"
        return "stopped" if self.failure is None else "failed"

    @property
    def failure(self) -> str | None:
        """Description of the error that ended the run; None if none did, or it went on since."""
        path = self.path / "failure.json"
        return printable(str(read_object(path).get("error", ""))) if path.exists() else None

    def note_failure(self, error: str | None) -> None:
        """Record the error that ended the run; None removes it when the run goes on.

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
    def removed(self) -> bool:
        """Whether config.json, without which no command sees the run, has been removed since."""
        try:
            (self.path / "config.json").stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # a network file system that is away for a while
            return False
        return False

    @property
    def label(self) -> str:
        """The user's name for the run: the key `label` of its configuration; "" if none."""
        return printable(str(self.config.get("label") or ""))

    def extended(self, rounds: int) -> Row:
        """Return `config` with its number of rounds raised to `rounds`, if it is lower."""
        asked = self.config.get("num-server-rounds")
        if isinstance(asked, int) and asked < rounds:
            return {**self.config, "num-server-rounds": rounds}
        return self.config

    def extend(self, rounds: int) -> None:
        """Raise the number of rounds in `config` to `rounds`, if it is lower, and write `config`.

        It may have other addresses and time limits than when the run began.

        Raises
        ------
        RunError, OSError
            If the configuration so far cannot be read, or the new one not be written.
        """
        self.config = self.extended(rounds)
        path = self.path / "config.json"
        kept = marked(self.config)
        if json.loads(strict_json(kept)) != read_object(path):
            made = path.stat().st_mtime_ns  # orders runs of the same second
            _write_json(path, kept)
            os.utime(path, ns=(made, made))

    @property
    def record(self) -> Row:
        """Observers' records of clients and server, by the observer's name; {} if not written."""
        return self._written("record.json", check_record)

    @property
    def mixtures(self) -> Row:
        """The mixtures kept from the newest round; {} if none were."""
        return self._written("mixtures.json", check_mixtures)

    def _written(self, name: str, check: Callable[[Path, Row], None]) -> Row:
        """Return the object in one of the run's files, checked; {} if there is no such file."""
        path = self.path / name
        if not path.exists():
            return {}
        written = read_object(path)
        check(path, written)
        return written

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Write record.json, which survives the process but not a power loss.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        write_atomic(self.path / "record.json", strict_json(record).encode(), flush=False)

    @property
    def checkpoints(self) -> CheckpointStore:
        """The server's checkpoints, in checkpoints/."""
        from flwr_splitmix.runs.checkpoints import (
            CheckpointStore,  # loads torch, so only on demand
        )

        return CheckpointStore(self.path / "checkpoints")

    @property
    def clients_dir(self) -> Path:
        """Directory of the clients' states; see `ClientStore`."""
        return self.path / "clients"


def _plain(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration as JSON values; raise TypeError, with the key, if one is none."""
    try:
        strict_json(config)
    except TypeError:
        from flwr_splitmix.storage import json_values  # loads torch, so only on demand

        plain: Mapping[str, Any] = json_values(config, "config")
        return plain
    return config


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_json(path, dict(value))
