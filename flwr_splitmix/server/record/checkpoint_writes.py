"""Writes of a run's checkpoints, even if the disk is full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from flwr_splitmix.runs import Run
from flwr_splitmix.runs.checkpoints import Checkpoint
from flwr_splitmix.server.record.run_folder import RunFolder


class CheckpointWrites:
    """Writes a run's checkpoints; the newest is kept in memory while the disk refuses it.

    Parameters
    ----------
    folder
        The destination; it has a run whenever something is saved.
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
        if (checkpoint := self._unsaved) is not None:
            run.checkpoints.save(checkpoint.round, checkpoint.tensors, checkpoint.meta)
            self._unsaved = None
