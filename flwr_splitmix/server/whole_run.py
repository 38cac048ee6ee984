"""All rounds of a run: their loop, rounds that are lost, checkpoints and resumption."""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import strategy as flower
from torch import Tensor

from flwr_splitmix.events import RunEnded
from flwr_splitmix.links import LinkError, LocalLink
from flwr_splitmix.links.errors import sentence
from flwr_splitmix.links.link import RoundLostError
from flwr_splitmix.server.evaluation.of_round import (
    check_evaluate_fn,
    warn_of_initial_weights,
    warn_of_uncalled,
)
from flwr_splitmix.server.flower_run import given_to, id_of
from flwr_splitmix.server.intake.replies import ReplyIntake
from flwr_splitmix.server.job import Job
from flwr_splitmix.server.naming import public_failure
from flwr_splitmix.server.one_round import OneRound
from flwr_splitmix.server.participants import DrawAgainError
from flwr_splitmix.server.record.checkpointing import (
    facts_of,
    method_of,
    notify_of_missed,
    pack,
    restoring,
    unpack,
)
from flwr_splitmix.server.record.own_state import state_of
from flwr_splitmix.values import whole_number
from flwr_splitmix.words import counted

log = logging.getLogger("flwr.splitmix")


class WholeRun(OneRound):
    """The part of a strategy that runs all rounds; `RoundLoop` sets the attributes."""

    _finished: int

    def _run(self, job: Job, num_rounds: int) -> flower.Result:
        with self.recorder.held():
            self.recorder.note_flower_run(id_of(job.grid))
            return self._run_held(job, num_rounds)

    def _run_held(self, job: Job, num_rounds: int) -> flower.Result:
        num_rounds = whole_number("num_rounds", num_rounds, least=1)
        check_evaluate_fn(job.evaluate_fn)
        self.num_rounds, self.over = num_rounds, ""
        self.audience.forget_stops()
        self._participants.forget()
        self._epsilons.forget()
        self.aggregator.forget()
        self.aggregator.check_has_weights(job.initial)
        self._intake = ReplyIntake(job.initial)
        self._finished, job.result.arrays = self._resume(job.initial)
        if not self._finished:
            self.aggregator.warn_if_shared()
            if not job.goes_on:
                self.warn_if_trained()
        self.recorder.warn_of_given(given_to(job.grid))
        self.summary()
        if self.recorder.run is not None:
            log.info("run %s: %s", self.recorder.run.id, self.recorder.run.path)
        name = type(self).__name__
        if job.evaluate_fn is not None and not self.aggregator.averages:
            warn_of_initial_weights(name)
        warn_of_uncalled(self, self.aggregator.strategy)
        error = public = ""
        try:
            self.audience.on_start(self.recorder.started(name, num_rounds, self._finished + 1))
            self._rounds(job)
            if self.recorder.run is not None:
                self.audience.check_facts(self.recorder.summary(self._own_facts))
            self.recorder.finish(self._facts())
        except BaseException as failure:
            error = sentence(failure)
            public = public_failure(failure, recorded=self.recorder.run is not None)
            raise
        finally:
            summary = self.recorder.summary(self._facts(error))
            self.audience.on_end(RunEnded(self._finished, summary, error, public))
        return job.result

    def _rounds(self, job: Job) -> None:
        link = self._open_link
        trained = self._finished > 0
        lost: RoundLostError | None = None
        try:
            link.open(job.grid)
            while self._finished < self.num_rounds and not self.over:
                try:
                    self._round(job, self._finished + 1)
                except DrawAgainError:
                    continue
                except RoundLostError as error:
                    log.warning("round %d is lost, the run goes on: %s", self._finished + 1, error)
                    lost = error
                    self.over = self.over or self.audience.stop
                else:
                    trained, lost = True, None
                self._finished += 1
            if lost is not None:
                self._end_lost(job, lost, trained=trained)
            if self.over:
                log.warning("the run ends after round %d: %s", self._finished, self.over)
        finally:
            try:
                self.recorder.save_unsaved()
            finally:
                link.close()

    def _end_lost(self, job: Job, lost: RoundLostError, *, trained: bool) -> None:
        """End a run whose last round was lost: its model is evaluated and saved as it is now.

        Raises
        ------
        LinkError
            If every round of the run was lost.
        """
        if not trained:
            rounds, self._finished = self._finished, 0
            raise LinkError(
                f"every round of the run was lost, so there are no results; round {rounds}, "
                f"the last: {lost}"
            ) from lost
        evaluation = self._evaluate(job, self._finished)
        self.recorder.end_lost(
            self._finished, evaluation, lambda: self._snapshot(job.result.arrays)
        )

    def _facts(self, error: str = "") -> dict[str, Any]:
        """Return the summary's entries besides those from the rows; see `Audience.facts`."""
        return {**self._own_facts, **self.audience.facts(error)}

    @property
    def _own_facts(self) -> dict[str, Any]:
        return {
            "strategy": type(self).__name__,
            **self._participants.facts,
            "seed": self.seed,
            "stopped": self.over or None,
        }

    def _snapshot(self, arrays: ArrayRecord) -> tuple[dict[str, Tensor], dict[str, Any]]:
        facts = {**self._participants.state(), **self._facts_to_keep}
        return pack(state_of(self), arrays, self.aggregator, self.audience, self._method, facts)

    @property
    def _facts_to_keep(self) -> dict[str, Any]:
        link = self.link
        return facts_of(self.seed, len(link.clients) if isinstance(link, LocalLink) else None)

    @property
    def _method(self) -> str:
        return method_of(self, self.aggregator)

    def _resume(self, initial: ArrayRecord) -> tuple[int, ArrayRecord]:
        """Resume from the newest checkpoint; return (finished rounds, lower segment's arrays)."""
        checkpoint = self.recorder.resume(self.num_rounds)
        self._participants.restore({} if checkpoint is None else checkpoint.meta)
        self.audience.absent = ()
        if checkpoint is None:
            return 0, initial
        with restoring(checkpoint, self._method, self._facts_to_keep):
            self.restore_server(checkpoint.tensors, checkpoint.meta)
        arrays = unpack(checkpoint, self.aggregator, self.audience, initial)
        self.recorder.go_on(checkpoint, self.num_rounds)
        begun = () if self.recorder.run is None else self.recorder.run.begun
        notify_of_missed(checkpoint, self.audience, begun, self.recorder.unfinished.clients)
        if checkpoint.round < self.num_rounds:
            log.info("resuming after round %d", checkpoint.round)
        else:
            log.warning(
                "the run has finished its %s, and nothing is left to do: raise %s to go on with it",
                counted(checkpoint.round, "round"),
                "num_rounds" if isinstance(self.link, LocalLink) else "num-server-rounds",
            )
        return checkpoint.round, arrays
