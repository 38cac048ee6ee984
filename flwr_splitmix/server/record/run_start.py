"""How a run's directory is taken up: its lock, its configuration, what a resumption discards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr_splitmix.links.errors import sentence
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.flower_run import note_flower_run
from flwr_splitmix.server.record.flower_run import warn_of_given
from flwr_splitmix.server.record.run_writes import RunWrites, needed


class RunStart(RunWrites):
    """Locks a run's directory, and writes there that the run goes on.

    A run that is resumed is left as it was until clients are admitted to its next round, so that
    one that is refused, or interrupted before, loses nothing.

    Parameters
    ----------
    run
        The run's directory; None writes nothing to disk.
    """

    def __init__(self, run: Run | None) -> None:
        super().__init__(run)
        self.resumed_config = ""
        """JSON of the configuration that a resumed run was started with; "" for a new run."""
        self._config: Mapping[str, Any] = {}
        self._start: tuple[int, int] | None = None
        """Rounds of the whole run (0: as configured), and those kept; None once it goes on."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the run within a `with` block; raise RunError if another process executes it.

        An exception that ends the block marks the run as failed; an interruption does not, nor
        does the refusal of a resumption.
        """
        if self.run is None:
            yield
            return
        with self.run.held():
            fresh = not self.run.begun and not self.run.rows
            self._start = 0, 0
            try:
                yield
            except Exception as error:
                said = sentence(error)
                if fresh or self._start is None:
                    self.attempt("failure", lambda run: run.note_failure(said))
                raise

    def note_flower_run(self, flower_run: int | None) -> None:
        """Write Flower's id of the run, if it has one, by which `splitmix run` finds the directory.

        The lock is held: a run that another process executes keeps the id of that.
        """
        if self.run is not None and flower_run is not None:
            self.attempt("id of Flower's run", lambda run: note_flower_run(run, flower_run))

    def _keep_config(self, run: Run, num_rounds: int, kept: int) -> None:
        """Have clients, too, go on with the configuration that the run was started with."""
        self._config = run.config_file.extended(num_rounds)
        self.resumed_config = json.dumps(self._config)
        self._start = num_rounds, kept

    def _write_start(self) -> None:
        """Write that the run goes on, once there is no more to refuse."""
        if self.run is None or self._start is None:
            return
        num_rounds, kept = self._start
        self._start = None  # an error is now the run's own
        run = self.run
        with needed(
            lambda reason: (
                f"run {run.id} cannot go on, as {run.path} cannot be written: {reason}; free space "
                "there and resume the run"
            )
        ):
            if num_rounds:
                run.config_file.extend(num_rounds)
            run.rewind(kept)
        self.attempt("end of the failure before", lambda run: run.note_failure(None))

    def warn_of_given(self, given: Mapping[str, Any]) -> None:
        """Log which keys given now are not those that a resumed run gives to its clients."""
        if self.run is not None and self.resumed_config and not self.run.config_file.reconciled:
            warn_of_given(self.run, given)
