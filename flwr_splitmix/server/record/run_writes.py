"""Writes to a run's directory that a full disk may prevent without ending the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.checkpoints import Checkpoint

log = logging.getLogger("flwr.splitmix")


class RunFolder:
    """A run's directory: tries to write there, and says what could not be written.

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
        """Write, and return whether that succeeded; a warning says what could not be written."""
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
    """Write within a `with` block what the run cannot do without.

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


class CheckpointWrites:
    """Writes a run's checkpoints; the newest is kept in memory while the disk refuses it.

    Parameters
    ----------
    folder
        Where to; it has a run whenever something is saved.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._unsaved: Checkpoint | None = None

    @property
    def rounds(self) -> list[int]:
        """Rounds that the run could be resumed from, including the unsaved one."""
        if self._folder.run is None:
            return []
        unsaved = [] if self._unsaved is None else [self._unsaved.round]
        return [*self._folder.run.checkpoints.rounds(), *unsaved]

    def save(
        self, number: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, durable: bool
    ) -> None:
        """Save a round's checkpoint, or keep a copy of it.

        Parameters
        ----------
        durable
            Whether to wait until it outlasts a power loss.
        """

        def write(run: Run) -> object:
            store = run.checkpoints
            return (store.save if durable else store.save_between)(number, tensors, meta)

        self._unsaved = None
        if not self._folder.attempt("checkpoint", write):
            # Training modifies these tensors, so keep a copy: there may be disk space later.
            copied = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
            self._unsaved = Checkpoint(number, copied, dict(meta))

    def forget_unsaved(self) -> None:
        """Forget a checkpoint that could not be saved, as the run begins again without it."""
        self._unsaved = None

    def save_unsaved(self) -> None:
        """Make the newest checkpoint durable, as far as that is possible (the run ends early)."""
        if self._folder.run is None:
            return
        if self._unsaved is None:
            self._folder.attempt("checkpoint", lambda run: run.checkpoints.keep_between())
        else:
            self._folder.attempt("checkpoint", self.save_kept)

    def save_kept(self, run: Run) -> None:
        """Save the checkpoint that could not be saved before, if any; raises OSError."""
        if (kept := self._unsaved) is not None:
            run.checkpoints.save(kept.round, kept.tensors, kept.meta)
            self._unsaved = None
