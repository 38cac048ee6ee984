"""A run's directory: writes that a full disk may prevent without ending the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr_splitmix.runs import Run, RunError

log = logging.getLogger("flwr.splitmix")


class RunFolder:
    """A run's directory: tries to write there, and warns of what could not be written.

    Parameters
    ----------
    run
        The run's directory; None has none, and nothing may be written.
    """

    def __init__(self, run: Run | None) -> None:
        self.run = run

    def check_there(self) -> None:
        """Raise RunError if the run's folder has been removed: no command would see the run."""
        if self.run is not None and self.run.config_file.removed:
            raise RunError(
                f"the folder of run {self.run.id} has been removed, or config.json in it, so the "
                f"run ends; start a new run, and remove {self.run.path} if anything is left of it"
            )

    def attempt(self, what: str, write: Callable[[Run], Any]) -> bool:
        """Write, and return whether that succeeded; warn if it did not."""
        assert self.run is not None
        if self.run.config_file.removed:
            return False  # writing would bring back a part of its folder
        try:
            write(self.run)
        except OSError as error:
            self._warn(what, error)
            return False
        return True

    def write_beginning(
        self, server_round: int, write: Callable[[Run], Any], *, required: bool
    ) -> bool:
        """Write that a round begins, and return whether that succeeded.

        Raises
        ------
        RunError
            If it cannot be written, but is `required`: see `RunRecorder.begin`.
        """
        assert self.run is not None
        if not required:
            return self.attempt("round's beginning", write)
        folder = self.run.path
        with needed(
            lambda reason: (
                f"the beginning of round {server_round} cannot be written to {folder}: {reason}; "
                "epsilon would lack what is sent again after an interruption: free space there and "
                "resume the run"
            )
        ):
            write(self.run)
        return True

    def _warn(self, what: str, error: OSError) -> None:
        """Log that something could not be written."""
        assert self.run is not None
        log.warning(
            "the %s could not be written to %s: %s; what was written before is intact",
            what,
            self.run.path,
            error.strerror or error,
        )


@contextmanager
def needed(message: Callable[[str], str]) -> Iterator[None]:
    """Turn a failed write within a `with` block, which the run needs, into a RunError.

    Parameters
    ----------
    message
        Makes the message of the error from the reason that the disk gives.

    Raises
    ------
    RunError
        If it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise RunError(message(error.strerror or str(error))) from error
