"""The files of a run: its beginning or resumption, rounds, checkpoints and summary."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from flwr_splitmix.events import EvaluationResult, RoundDone, RunStarted
from flwr_splitmix.observers import Observer
from flwr_splitmix.observers.progress import ProgressFile
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.checkpoints import Checkpoint
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.server.record.checkpoint_writes import CheckpointWrites
from flwr_splitmix.server.record.checkpointing import newest_checkpoint
from flwr_splitmix.server.record.run_folder import RunFolder, needed
from flwr_splitmix.server.record.run_records import RunRecords
from flwr_splitmix.server.record.run_start import RunStart
from flwr_splitmix.storage import json_values

log = logging.getLogger("flwr.splitmix")

Snapshot = Callable[[], tuple[dict[str, Tensor], dict[str, Any]]]


class RunRecorder:
    """Writes a run's directory as the rounds end.

    A full disk costs a warning and the newest checkpoint, but does not end the run: the last good
    checkpoint is intact, and the next round tries again.

    Parameters
    ----------
    run
        The run's directory; None writes nothing to disk.
    checkpoint_every
        Rounds between durable checkpoints, which the run waits for. Rounds in between are written
        too, and survive any end of the process (a signal, `flwr stop`, a crash), but not a power
        loss.
    records
        The records that are written.

    Attributes
    ----------
    folder, start, checkpoints
        The run's directory, its beginning or resumption, and its checkpoints.
    """

    def __init__(self, run: Run | None, checkpoint_every: int, records: RunRecords) -> None:
        self.folder = RunFolder(run)
        self.start = RunStart(self.folder)
        self.checkpoints = CheckpointWrites(self.folder)
        self._every = checkpoint_every
        self._records = records
        self._once = SeenKeys()

    @property
    def run(self) -> Run | None:
        """The run's directory; None if there is none."""
        return self.folder.run

    @property
    def observers(self) -> list[Observer]:
        """The observers that write to the run's directory."""
        return [] if self.run is None else [ProgressFile(self.run.path)]

    def resume(self, num_rounds: int) -> Checkpoint | None:
        """Return the newest checkpoint, if the run has one.

        A run that was interrupted before its first checkpoint begins anew, with the configuration
        that it was started with.

        Parameters
        ----------
        num_rounds
            Rounds of the whole run.

        Raises
        ------
        RunError
            If no checkpoint can be read, or none is left of a run that had some.
        """
        self.checkpoints.forget_unsaved()
        checkpoint = None if self.run is None else newest_checkpoint(self.run, self._every)
        if checkpoint is not None:
            return checkpoint
        if self.run is not None:
            if self.run.new:
                self.start.take_config(self.run)
            else:
                if self.run.begun:
                    log.info("run %s has no checkpoint yet and begins anew", self.run.id)
                self.start.keep_config(self.run, num_rounds, 0)
            self._records.unfinished.resume(self.run.begun)
        return None

    def go_on(self, checkpoint: Checkpoint, num_rounds: int) -> None:
        """Continue the run after a checkpoint that was restored; discard everything after it.

        Parameters
        ----------
        num_rounds
            Rounds of the whole run; a larger number than before extends it.
        """
        if self.run is None:
            return
        self.start.keep_config(self.run, num_rounds, checkpoint.round)
        rows = [row for row in self.run.rows if row["round"] <= checkpoint.round]
        self._records.go_on(rows, checkpoint.meta)
        if self._records.unfinished.resume(self.run.begun) and self._records.has_epsilon:
            log.warning(
                "%s has lost lines; without them epsilon lacks what interrupted rounds have sent",
                self.run.path / "begun.jsonl",
            )

    def started(self, strategy: str, num_rounds: int, first_round: int) -> RunStarted:
        """Return the event that observers get when the run starts."""
        run = self.run
        if run is None:
            return RunStarted(strategy, num_rounds, first_round)
        return RunStarted(
            strategy,
            num_rounds,
            first_round,
            config=self.start.config,
            run_id=run.id,
            directory=run.path,
            interrupted=tuple(self._records.unfinished.interrupted),
        )

    def begin(
        self,
        server_round: int,
        clients: Iterable[int],
        *,
        evaluates: bool = False,
        steps: int | None = None,
        required: bool,
    ) -> None:
        """Record that training or evaluation begins, before a client is asked about its data.

        A round that no clients attach to has not begun: nothing was released in it, so it costs
        nothing when it is repeated.

        Parameters
        ----------
        steps
            Most batches that training asks a client for; None if not known. Of a round
            without noise it is not recorded: if it is repeated with noise, after an interruption,
            the noise does not pay for what was sent the first time.

        Raises
        ------
        RunError
            If the run's folder has been removed, or if it cannot be recorded, but is `required`:
            unrecorded uploads would be free when they are repeated.
        """
        self.folder.check_there()
        self.start.write()
        if not evaluates:
            self._records.clock.begin_round()
            if required and steps is None and self._once.add("unknown steps"):
                log.warning(
                    "the strategy does not give a round's number of steps, so a client that does "
                    "not finish one has no epsilon any more: let its `agree` return the number"
                )
        if self.run is None:
            return
        unfinished = self._records.unfinished
        protection = unfinished.protection

        def write(run: Run) -> None:
            run.begin(
                server_round,
                clients,
                evaluates=evaluates,
                again=() if evaluates else unfinished.lost,
                steps=None if protection is None else steps,
                protection=protection or "",
            )

        if self.folder.write_beginning(server_round, write, required=required):
            unfinished.recorded()

    def end_round(self, event: RoundDone, snapshot: Snapshot) -> None:
        """Write the round's row and a checkpoint (durable if due); log one line.

        Raises
        ------
        RunError
            If the run's folder has been removed; nothing is written then.
        """
        self.folder.check_there()
        row = dict(event.row)
        if self.run is not None:
            self.folder.attempt("metrics", lambda run: run.append_round(row))
            self._write_record()
            number = event.server_round
            is_due = number % self._every == 0 or number == event.num_rounds
            tensors, meta = snapshot()
            plain_values = {**meta, **self._records.to_keep}
            self.checkpoints.save(number, tensors, plain_values, durable=is_due)
        self._records.end_round(event)

    def end_lost(
        self, server_round: int, evaluation: EvaluationResult | None, snapshot: Snapshot
    ) -> None:
        """Write a checkpoint after the last round, which was lost, and keep its evaluation.

        The evaluation is in the summary and in the checkpoint, as the round has no row.

        Raises
        ------
        RunError
            If the run's folder has been removed; nothing is written then.
        """
        self.folder.check_there()
        self._records.end_lost(server_round, evaluation)
        if self.run is not None:
            self._write_record()
            tensors, meta = snapshot()
            plain_values = {**meta, **self._records.to_keep_of_lost}
            self.checkpoints.save(server_round, tensors, plain_values, durable=True)

    def _write_record(self) -> None:
        record = self._records.of_clients
        self.folder.attempt("record of the clients", lambda run: run.write_record(record))

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Write the summary, and the newest checkpoint if it could not be written before.

        Raises
        ------
        RunError
            If writing fails, or the run's folder has been removed: a run whose results are not on
            disk has not finished.
        """
        self.folder.check_there()
        if self.run is None:
            return
        summary = json_values(self.summary(facts), "the summary")
        run = self.run

        def unwritten(reason: str) -> str:
            go_on = "resume the run" if run.checkpoints.rounds() else "start a new run"
            return (
                f"the end of the run cannot be written to {run.path}: {reason}; free space there "
                f"and {go_on}"
            )

        with needed(unwritten):
            self.start.write()
            self.checkpoints.save_kept(run)
            run.write_summary(summary)
        log.info("run %s: %s", run.id, run.path)

    def summary(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the summary that is written: that of the records, with the model's name."""
        return self._records.summary(
            facts, None if self.run is None else self.run.config.get("model")
        )
