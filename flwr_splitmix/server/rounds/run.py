"""All rounds of a run: their loop, rounds that are lost, checkpoints and resumption."""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import ArrayRecord
from torch import Tensor

from flwr_splitmix.events import RunEnded
from flwr_splitmix.links import LinkError, LocalLink
from flwr_splitmix.links.errors import sentence
from flwr_splitmix.links.link import RoundLostError
from flwr_splitmix.server.evaluation.of_round import (
    warn_of_initial_weights,
    warn_of_uncalled,
)
from flwr_splitmix.server.naming import public_failure
from flwr_splitmix.server.nodes.participants import DrawAgainError
from flwr_splitmix.server.record.checkpointing import (
    method_of,
    notify_of_missed,
    pack,
    restoring,
    unpack,
)
from flwr_splitmix.server.record.flower_grid import given_to
from flwr_splitmix.server.rounds.hooks import RoundHooks
from flwr_splitmix.server.rounds.job import Job
from flwr_splitmix.server.rounds.known_clients import KnownClients
from flwr_splitmix.server.rounds.own_state import state_of
from flwr_splitmix.server.rounds.round import OneRound
from flwr_splitmix.words import counted

log = logging.getLogger("flwr.splitmix")


class WholeRun:
    """The rounds of one run of a strategy.

    Parameters
    ----------
    strategy
        Whose rounds they are.
    known
        What is known of the run's clients.
    job
        The run's inputs; its result grows with the rounds.

    Attributes
    ----------
    finished
        Number of the last round that was finished or lost.
    """

    def __init__(self, strategy: RoundHooks, known: KnownClients, job: Job) -> None:
        self._strategy = strategy
        self._known = known
        self._recorder, self._audience = strategy.recorder, strategy.audience
        self._job = job
        self.finished = 0

    def execute(self) -> None:
        """Run all rounds, from the first or from the newest checkpoint, and tell observers.

        Raises
        ------
        LinkError
            If too few clients are left in a round, or every round was lost.
        RunError
            If the checkpoint is of another strategy, aggregator, seed, model or optimizer.
        """
        strategy, job, recorder = self._strategy, self._job, self._recorder
        self.finished, job.result.arrays = self._resume()
        if not self.finished:
            strategy.aggregator.warn_if_shared()
            if not job.goes_on:
                strategy.warn_if_trained()
        recorder.start.warn_of_given(given_to(job.grid))
        strategy.summary()
        if recorder.run is not None:
            log.info("run %s: %s", recorder.run.id, recorder.run.path)
        name = type(strategy).__name__
        if job.evaluate_fn is not None and not strategy.aggregator.averages:
            warn_of_initial_weights(name)
        warn_of_uncalled(strategy, strategy.aggregator.strategy)
        error = public = ""
        try:
            started = recorder.started(name, strategy.num_rounds, self.finished + 1)
            self._audience.on_start(started)
            self._rounds()
            if recorder.run is not None:
                self._audience.check_facts(recorder.summary(self._own_facts))
            recorder.finish(self._facts())
        except BaseException as failure:
            error = sentence(failure)
            public = public_failure(failure, recorded=recorder.run is not None)
            raise
        finally:
            summary = recorder.summary(self._facts(error))
            self._audience.on_end(RunEnded(self.finished, summary, error, public))

    def _rounds(self) -> None:
        strategy, link = self._strategy, self._strategy.open_link
        trained = self.finished > 0
        lost: RoundLostError | None = None
        try:
            link.open(self._job.grid)
            while self.finished < strategy.num_rounds and not strategy.stop_reason:
                number = self.finished + 1
                try:
                    event = OneRound(strategy, self._known, self._job, number).run()
                    self._recorder.end_round(event, self._snapshot)
                except DrawAgainError:
                    continue
                except RoundLostError as error:
                    log.warning("round %d is lost, the run goes on: %s", number, error)
                    lost = error
                    strategy.heed_observers()
                else:
                    trained, lost = True, None
                self.finished = number
            if lost is not None:
                self._end_lost(lost, trained=trained)
            if strategy.stop_reason:
                log.warning("the run ends after round %d: %s", self.finished, strategy.stop_reason)
        finally:
            try:
                self._recorder.checkpoints.save_unsaved()
            finally:
                link.close()

    def _end_lost(self, lost: RoundLostError, *, trained: bool) -> None:
        """End a run whose last round was lost: its model is evaluated and saved as it is now.

        Raises
        ------
        LinkError
            If every round of the run was lost.
        """
        if not trained:
            rounds, self.finished = self.finished, 0
            raise LinkError(
                f"every round of the run was lost, so there are no results; round {rounds}, "
                f"the last: {lost}"
            ) from lost
        evaluation = OneRound(self._strategy, self._known, self._job, self.finished).evaluate()
        self._recorder.end_lost(self.finished, evaluation, self._snapshot)

    def _facts(self, error: str = "") -> dict[str, Any]:
        """Return the summary's entries besides those from the rows; see `Audience.facts`."""
        return {**self._own_facts, **self._audience.facts(error)}

    @property
    def _own_facts(self) -> dict[str, Any]:
        strategy = self._strategy
        return {
            "strategy": type(strategy).__name__,
            **self._known.participants.facts,
            "seed": strategy.seed,
            "stopped": strategy.stop_reason or None,
        }

    def _snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a checkpoint holds: tensors, and JSON values."""
        strategy = self._strategy
        facts = {**self._known.participants.state(), **strategy.facts_to_keep}
        state, arrays = state_of(strategy), self._job.result.arrays
        return pack(state, arrays, strategy.aggregator, self._audience, self._method, facts)

    @property
    def _method(self) -> str:
        return method_of(self._strategy, self._strategy.aggregator)

    def _resume(self) -> tuple[int, ArrayRecord]:
        """Resume from the newest checkpoint; return (finished rounds, lower segment's arrays)."""
        strategy, recorder, num_rounds = self._strategy, self._recorder, self._strategy.num_rounds
        checkpoint = recorder.resume(num_rounds)
        self._known.participants.restore({} if checkpoint is None else checkpoint.meta)
        self._audience.absent = ()
        if checkpoint is None:
            return 0, self._job.initial
        with restoring(checkpoint, self._method, strategy.facts_to_keep):
            strategy.restore_server(checkpoint.tensors, checkpoint.meta)
        arrays = unpack(checkpoint, strategy.aggregator, self._audience, self._job.initial)
        recorder.go_on(checkpoint, num_rounds)
        begun = () if recorder.run is None else recorder.run.begun
        notify_of_missed(checkpoint, self._audience, begun, strategy.records.unfinished.clients)
        if checkpoint.round < num_rounds:
            log.info("resuming after round %d", checkpoint.round)
            self._known.participants.warn_of_unasked()
        else:
            log.warning(
                "the run has finished its %s, and nothing is left to do: raise %s to go on with it",
                counted(checkpoint.round, "round"),
                "num_rounds" if isinstance(strategy.link, LocalLink) else "num-server-rounds",
            )
        return checkpoint.round, arrays
