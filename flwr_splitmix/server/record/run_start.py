"""The start of a run in its directory: lock, configuration, what a resumption discards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr_splitmix.links.errors import sentence
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.flower_run import note_flower_run
from flwr_splitmix.server.record.flower_grid import warn_of_other_values
from flwr_splitmix.server.record.run_folder import RunFolder, needed


class RunStart:
    """Locks a run's directory, and writes there that the run is resumed.

    A run that is resumed is left as it was until clients are admitted to its next round, so that
    one that is refused, or interrupted before, loses nothing.

    Parameters
    ----------
    folder
        The run's directory; without a run nothing is written.

    Attributes
    ----------
    config
        The configuration of the run, once it has begun or is resumed.
    resumed_config
        JSON of the configuration that a resumed run was started with; "" for a new run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.config: Mapping[str, Any] = {}
        self.resumed_config = ""
        self._start: tuple[int, int] | None = None
        """Rounds of the whole run (0: as configured), and those kept; None once it has resumed."""

    @contextmanager
    def held(self, flower_run: int | None) -> Iterator[None]:
        """Lock the run within a `with` block; raise RunError if another process executes it.

        An exception that ends the block marks the run as failed; an interruption does not, nor
        does the refusal of a resumption.

        Parameters
        ----------
        flower_run
            Flower's id of the run, by which `splitmix run` finds the directory: it is written once
            the lock is held, as a run that another process executes keeps the id of that. None
            outside of Flower's runs.
        """
        run, attempt = self._folder.run, self._folder.attempt
        if run is None:
            yield
            return
        with run.held():
            fresh = not run.begun and not run.rows
            self._start = 0, 0
            try:
                if flower_run is not None:
                    attempt("id of Flower's run", lambda run: note_flower_run(run, flower_run))
                yield
            except Exception as error:
                failure = sentence(error)
                if fresh or self._start is None:
                    attempt("failure", lambda run: run.note_failure(failure))
                raise

    def take_config(self, run: Run) -> None:
        """Give observers the configuration of a new run, with which clients begin anyway."""
        self.config = run.config

    def keep_config(self, run: Run, num_rounds: int, kept: int) -> None:
        """Have clients, too, continue with the configuration that the run was started with.

        Parameters
        ----------
        num_rounds, kept
            Rounds of the whole run, and those that it has finished.
        """
        self.config = run.config_file.extended(num_rounds)
        self.resumed_config = json.dumps(self.config)
        self._start = num_rounds, kept

    def write(self) -> None:
        """Write that the run is resumed, once it is not refused any more; only the first call does.

        Raises
        ------
        RunError
            If it cannot be written.
        """
        run = self._folder.run
        if run is None or self._start is None:
            return
        num_rounds, finished_rounds = self._start
        self._start = None  # an error is now the run's own
        with needed(
            lambda reason: (
                f"run {run.id} cannot be resumed, as {run.path} cannot be written: {reason}; free "
                "space there and resume the run"
            )
        ):
            if num_rounds:
                run.config_file.extend(num_rounds)
            run.rewind(finished_rounds)
        self._folder.attempt("end of the failure before", lambda run: run.note_failure(None))

    def warn_of_given(self, given: Mapping[str, Any]) -> None:
        """Log the keys whose present values differ from those of a resumed run's clients."""
        run = self._folder.run
        if run is not None and self.resumed_config and not run.config_file.reconciled:
            warn_of_other_values(run, given)
