"""The record of a run: metrics, checkpoints, a summary, one log line per round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from flwr_splitmix.events import EvaluationResult, RoundDone, RunStarted
from flwr_splitmix.observers import (
    ClientTimes,
    ExchangeKinds,
    Metrics,
    Observer,
    UnfinishedRounds,
    progress_line,
)
from flwr_splitmix.observers.metrics import evaluation_columns
from flwr_splitmix.observers.progress import ProgressFile
from flwr_splitmix.once import Once
from flwr_splitmix.runs import Run
from flwr_splitmix.runs.checkpoints import Checkpoint
from flwr_splitmix.runs.epsilon import epsilon_of
from flwr_splitmix.server.record.checkpoint_writes import CheckpointWrites
from flwr_splitmix.server.record.checkpointing import newest_checkpoint
from flwr_splitmix.server.record.clock import RunClock
from flwr_splitmix.server.record.recording import Recording
from flwr_splitmix.server.record.run_folder import RunFolder, needed
from flwr_splitmix.server.record.run_start import RunStart
from flwr_splitmix.server.record.summary import summarise
from flwr_splitmix.storage import json_values

log = logging.getLogger("flwr.splitmix")

Snapshot = Callable[[], tuple[dict[str, Tensor], dict[str, Any]]]

_EVALUATED = "evaluated-after-loss"
"""Name, in a checkpoint after a last round that was lost, of the columns of its evaluation."""


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
    metrics
        Makes the rows; None makes the standard rows.
    recording
        What the strategy's shape tells.
    """

    def __init__(
        self, run: Run | None, checkpoint_every: int, metrics: Metrics | None, recording: Recording
    ) -> None:
        self.folder = RunFolder(run)
        self._start = RunStart(self.folder)
        self._checkpoints = CheckpointWrites(self.folder)
        self.every = checkpoint_every
        self.metrics = metrics or Metrics()
        self.metrics.labels = recording.labels
        self.clients = ClientTimes()
        self.exchanges = ExchangeKinds()
        self.unfinished = UnfinishedRounds(recording.protection)
        files = [] if run is None else [ProgressFile(run.path)]
        self.observers: list[Observer] = [
            self.metrics,
            self.clients,
            self.exchanges,
            self.unfinished,
            *files,
        ]
        """The observers that record for the run's directory, in the order used by checkpoints."""
        self._once = Once()
        self._evaluated: dict[str, Any] = {}
        """The columns of an evaluation after a last round that was lost, with its round."""
        self.clock = RunClock()
        self._mixtures = recording.mixtures

    @property
    def run(self) -> Run | None:
        """The run's directory; None if there is none."""
        return self.folder.run

    @property
    def resumed_config(self) -> str:
        """JSON of the configuration that a resumed run was started with; "" for a new run."""
        return self._start.resumed_config

    def held(self, flower_run: int | None) -> AbstractContextManager[None]:
        """Lock the run within a `with` block, and note its id; see `RunStart.held`."""
        return self._start.held(flower_run)

    def warn_of_given(self, given: Mapping[str, Any]) -> None:
        """Log which keys given now are not those that a resumed run gives to its clients."""
        self._start.warn_of_given(given)

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
        self._checkpoints.forget_unsaved()
        checkpoint = None if self.run is None else newest_checkpoint(self.run, self.every)
        if checkpoint is not None:
            return checkpoint
        # A strategy may be run for the second time.
        self.metrics.rows, self._evaluated = [], {}
        self.clock.restart()
        if self.run is not None:
            if self.run.new:
                self._start.config = self.run.config
            else:
                if self.run.begun:
                    log.info("run %s has no checkpoint yet and begins anew", self.run.id)
                self._start.keep_config(self.run, num_rounds, 0)
            self.unfinished.resume(self.run.begun)
        return None

    def go_on(self, checkpoint: Checkpoint, num_rounds: int) -> None:
        """Continue the run after a checkpoint that was restored; what came after it is discarded.

        Parameters
        ----------
        num_rounds
            Rounds of the whole run; a larger number than before extends it.
        """
        if self.run is None:
            return
        self._start.keep_config(self.run, num_rounds, checkpoint.round)
        self.metrics.rows = [row for row in self.run.rows if row["round"] <= checkpoint.round]
        self._evaluated = checkpoint.meta.get(_EVALUATED, {})
        if self.unfinished.resume(self.run.begun) and _have_epsilon(self.metrics.rows):
            log.warning(
                "%s has lost lines; without them epsilon lacks what interrupted rounds have sent",
                self.run.path / "begun.jsonl",
            )
        self.clock.restart(float(checkpoint.meta.get("wall_s", 0.0)))

    def started(self, strategy: str, num_rounds: int, first_round: int) -> RunStarted:
        """Return the event that observers get when the run starts."""
        run = self.run
        if run is None:
            return RunStarted(strategy, num_rounds, first_round)
        return RunStarted(
            strategy,
            num_rounds,
            first_round,
            config=self._start.config,
            run_id=run.id,
            directory=run.path,
            interrupted=tuple(self.unfinished.interrupted),
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
            Most batches that training asks a client for; None if that is not known. Of a round
            without noise it is not recorded: if it is repeated with noise, after an interruption,
            the noise does not pay for what was sent the first time.

        Raises
        ------
        RunError
            If the run's folder has been removed. Also if it cannot be recorded, but is `required`:
            unrecorded uploads would be free when they are repeated.
        """
        self.folder.check_there()
        self._start.write()
        if not evaluates:
            self.clock.begin_round()
            if required and steps is None and self._once.first("unknown steps"):
                log.warning(
                    "the strategy does not say how many steps a round has, so whoever does not "
                    "finish one has no epsilon any more: let its `agree` return the number"
                )
        if self.run is None:
            return
        protection = self.unfinished.protection

        def write(run: Run) -> None:
            run.begin(
                server_round,
                clients,
                evaluates=evaluates,
                again=() if evaluates else self.unfinished.lost,
                steps=None if protection is None else steps,
                protection=protection or "",
            )

        if self.folder.write_beginning(server_round, write, required=required):
            self.unfinished.recorded()

    @property
    def kept_rounds(self) -> list[int]:
        """Rounds that the run could be resumed from, including the unsaved one."""
        return self._checkpoints.rounds

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
            due = number % self.every == 0 or number == event.num_rounds
            self._save(number, *snapshot(), durable=due)
        self.clock.end_round()
        left = self.clock.seconds_of(event.num_rounds - event.server_round)
        log.info("%s", progress_line(row, event.num_rounds, left))

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
        if evaluation is not None:
            self._evaluated = {"round": server_round, **evaluation_columns(evaluation)}
            log.info(
                "after round %d, which was lost: top-1 %.4f (%s)",
                server_round,
                evaluation.accuracy,
                evaluation.kind,
            )
        if self.run is not None:
            self._write_record()
            tensors, meta = snapshot()
            self._save(server_round, tensors, {**meta, _EVALUATED: self._evaluated}, durable=True)

    def _write_record(self) -> None:
        record = {"clients": self.clients.state(), "messages": self.exchanges.state()}
        self.folder.attempt("record of the clients", lambda run: run.write_record(record))

    def save_unsaved(self) -> None:
        """Save a checkpoint of the last finished round if it has none yet (the run ends early)."""
        self._checkpoints.save_unsaved()

    def _save(
        self, number: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, durable: bool
    ) -> None:
        meta = {**meta, "wall_s": self.clock.seconds}
        self._checkpoints.save(number, tensors, meta, durable=durable)

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
            self._start.write()
            self._checkpoints.save_kept(run)
            run.write_summary(summary)
        log.info("run %s: %s", run.id, run.path)

    def summary(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Summarise the rows: totals, the last evaluation, and further facts of the run."""
        model = None if self.run is None else self.run.config.get("model")
        return summarise(
            self.metrics.rows,
            facts,
            evaluated=self._evaluated,
            mixtures=self._mixtures,
            model=model,
            seconds=self.clock.seconds,
        )


def _have_epsilon(rows: Iterable[Mapping[str, Any]]) -> bool:
    return any(epsilon_of(row) is not None for row in rows)
