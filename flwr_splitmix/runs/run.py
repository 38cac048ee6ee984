"""A run's directory: configuration, metrics and summary."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flwr_splitmix.runs.begun import Begun, append_begun, read_begun
from flwr_splitmix.runs.config_file import ConfigFile, as_written
from flwr_splitmix.runs.ending import Ending
from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.runs.hold import Hold
from flwr_splitmix.runs.metrics_file import MetricsFile, Row
from flwr_splitmix.runs.observed import read_mixtures, read_record, write_record
from flwr_splitmix.runs.places import check_label, find_run, new_run, run_paths, runs_directory
from flwr_splitmix.runs.state_key import read_or_draw
from flwr_splitmix.values import check_kind
from flwr_splitmix.words import printable

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
        mixtures.json, state-key, attacks/.
    id
        The directory's name: UTC time, name, four hex digits; e.g. 20261120-101500-cutmixsl-3f2a.
    config_file
        The run's configuration, and its changes when the run is resumed; see `config`.
    new
        Whether this process has created it; otherwise it was opened, and may already have begun.

    Raises
    ------
    RunError
        If `path` holds no readable config.json.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = printable(path.name)
        self.config_file = ConfigFile(path / "config.json")
        self.new = False
        self._ending = Ending(path)
        self._metrics = MetricsFile(path)
        self._hold = Hold(path / "lock", f"run {self.id}")
        self._state_key = ""

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
            If `name` is not text, `config` is not a dictionary, or one of its values is not one
            that JSON can represent.
        """
        check_kind("name", name, str, "a text, such as 'baseline'")
        check_kind("config", config, Mapping, "a dictionary, the run's configuration")
        check_label(config.get("label"))
        run = cls(new_run(name, as_written(config), home))
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

    def state_key(self) -> str:
        """Return the secret by which SuperNodes know the run, drawn when one is first asked.

        Raises
        ------
        RunError
            If its file cannot be read or written, or holds no key.
        """
        self._state_key = self._state_key or read_or_draw(self.path)
        return self._state_key

    @property
    def config(self) -> Row:
        """The run's configuration, as plain JSON values."""
        return self.config_file.values

    @property
    def label(self) -> str:
        """The user's name for the run: the key `label` of its configuration; "" if none."""
        return self.config_file.label

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
        self._ending.reopen()
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
        """Record a beginning, so that a repeated round counts its uploads as sent before.

        Parameters
        ----------
        again
            Those of `clients` that did not finish the round that they began before.
        steps
            Most batches that training asks a client for; None if not known.
        protection
            A digest of the mixer and the noise of uploads; "" if not known.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        sorted_clients = sorted(clients)
        repeat = [client for client in sorted_clients if client in again]
        append_begun(
            self.path / "begun.jsonl",
            Begun(round, sorted_clients, evaluates, repeat, steps, protection),
        )

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Complete metrics.parquet and write summary.json, which marks the run as finished."""
        self._metrics.complete()
        self._ending.finish(summary)

    @property
    def summary(self) -> Row | None:
        """The summary written by `write_summary`, or None while the run is unfinished."""
        return self._ending.summary

    @property
    def status(self) -> State:
        """The run's state.

        "finished": it has a summary, until clients take part in a round that is added. Otherwise
        "running": a process holds its lock. Otherwise
        "failed": an error ended it (see `failure`). Otherwise "stopped": it was interrupted,
        killed, or never begun. Without file locks, a running run looks stopped.
        """
        if self._ending.finished:
            return "finished"
        if self._hold.is_taken():
            return "running"
        return "stopped" if self.failure is None else "failed"

    @property
    def failure(self) -> str | None:
        """Description of the error that ended the run; None if none did, or it resumed since."""
        return self._ending.failure

    def note_failure(self, error: str | None) -> None:
        """Record the error that ended the run; None removes it when the run resumes.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        self._ending.note_failure(error)

    @property
    def record(self) -> Row:
        """Observers' records of clients and server, by the observer's name; {} if not written."""
        return read_record(self.path)

    @property
    def mixtures(self) -> Row:
        """The mixtures kept from the newest round; {} if none were kept."""
        return read_mixtures(self.path)

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Write record.json, which survives the process but not a power loss.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        write_record(self.path, record)

    @property
    def checkpoints(self) -> CheckpointStore:
        """The server's checkpoints, in checkpoints/."""
        from flwr_splitmix.runs.checkpoints import CheckpointStore  # loads torch: on demand

        return CheckpointStore(self.path / "checkpoints")

    @property
    def clients_dir(self) -> Path:
        """Directory of the clients' states; see `ClientStore`."""
        return self.path / "clients"
