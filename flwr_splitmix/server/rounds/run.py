"""All rounds of a run: their loop, rounds that are lost, checkpoints and resumption."""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import ArrayRecord
from torch import Tensor

from flwr_splitmix.events import RunEnded
from flwr_splitmix.links import LinkError
from flwr_splitmix.links.errors import sentence
from flwr_splitmix.links.link import RoundLostError
from flwr_splitmix.server.evaluation.of_round import (
    warn_of_initial_weights,
    warn_of_uncalled,
)
from flwr_splitmix.server.naming import name_of_option, public_failure
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
from flwr_splitmix.server.rounds.own_state import state_of
from flwr_splitmix.server.rounds.round import OneRound
from flwr_splitmix.words import counted

log = logging.getLogger("flwr.splitmix")


class WholeRun:
    """The rounds of one run of a strategy.

    Parameters
    ----------
    strategy
        Whose rounds they are; its `run_state` is that of the run, which has begun.
    """

    def __init__(self, strategy: RoundHooks) -> None:
        self._strategy, self._run = strategy, strategy.run_state
        self._recorder, self._audience = strategy.recorder, strategy.audience

    def execute(self) -> None:
        """Run all rounds, from the first or from the newest checkpoint, and notify observers.

        Raises
        ------
        LinkError
            If too few clients are left in a round, or every round was lost.
        RunError
            If the checkpoint belongs to another strategy, aggregator, seed, model or optimizer.
        """
        strategy, run, recorder = self._strategy, self._run, self._recorder
        run.finished, run.result.arrays = self._resume()
        if not run.finished:
            strategy.aggregator.warn_if_shared()
            if not run.continues_fit:
                strategy.warn_if_trained()
        recorder.start.warn_of_given(given_to(run.grid))
        strategy.summary()
        if recorder.run is not None:
            log.info("run %s: %s", recorder.run.id, recorder.run.path)
        name = type(strategy).__name__
        if run.evaluate_fn is not None and not strategy.aggregator.averages:
            warn_of_initial_weights(name)
        warn_of_uncalled(strategy, strategy.aggregator.strategy)
        error = public = ""
        try:
            started = recorder.started(name, run.num_rounds, run.finished + 1)
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
            self._audience.on_end(RunEnded(run.finished, summary, error, public))

    def _rounds(self) -> None:
        strategy, run = self._strategy, self._run
        trained = run.finished > 0
        lost: RoundLostError | None = None
        try:
            run.link.open(run.grid)
            while run.finished < run.num_rounds and not run.stop_reason:
                number = run.finished + 1
                try:
                    event = OneRound(strategy, number).run()
                    self._recorder.end_round(event, self._snapshot)
                except DrawAgainError:
                    continue
                except RoundLostError as error:
                    log.warning("round %d is lost, the run continues: %s", number, error)
                    lost = error
                    run.stop_if_asked_by(self._audience)
                else:
                    trained, lost = True, None
                run.finished = number
            if lost is not None:
                self._end_lost(lost, trained=trained)
            if run.stop_reason:
                log.warning("the run ends after round %d: %s", run.finished, run.stop_reason)
        finally:
            try:
                self._recorder.checkpoints.save_unsaved()
            finally:
                run.link.close()

    def _end_lost(self, lost: RoundLostError, *, trained: bool) -> None:
        """End a run whose last round was lost: its model is evaluated and saved as it is now.

        Raises
        ------
        LinkError
            If every round of the run was lost.
        """
        run = self._run
        if not trained:
            rounds, run.finished = run.finished, 0
            raise LinkError(
                f"every round of the run was lost, so there are no results; round {rounds}, "
                f"the last: {lost}"
            ) from lost
        evaluation = OneRound(self._strategy, run.finished).evaluate()
        self._recorder.end_lost(run.finished, evaluation, self._snapshot)

    def _facts(self, error: str = "") -> dict[str, Any]:
        """Return the summary's entries besides those from the rows; see `Audience.facts`."""
        return {**self._own_facts, **self._audience.facts(error)}

    @property
    def _own_facts(self) -> dict[str, Any]:
        return {
            "strategy": type(self._strategy).__name__,
            **self._run.participants.facts,
            "seed": self._strategy.seed,
            "stopped": self._run.stop_reason or None,
        }

    def _snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the contents of a checkpoint: tensors, and JSON values."""
        strategy, run = self._strategy, self._run
        facts = {**run.participants.state(), **strategy.facts_to_keep}
        state, arrays = state_of(strategy), run.result.arrays
        return pack(state, arrays, strategy.aggregator, self._audience, self._method, facts)

    @property
    def _method(self) -> str:
        return method_of(self._strategy, self._strategy.aggregator)

    def _resume(self) -> tuple[int, ArrayRecord]:
        """Resume from the newest checkpoint; return (finished rounds, lower segment's arrays)."""
        strategy, run, recorder = self._strategy, self._run, self._recorder
        checkpoint = recorder.resume(run.num_rounds)
        if checkpoint is None:
            return 0, run.initial
        run.participants.restore(checkpoint.meta)
        with restoring(checkpoint, self._method, strategy.facts_to_keep):
            strategy.restore_server(checkpoint.tensors, checkpoint.meta)
        arrays = unpack(checkpoint, strategy.aggregator, self._audience, run.initial)
        recorder.go_on(checkpoint, run.num_rounds)
        directory = recorder.run
        begun = () if directory is None else directory.begun
        notify_of_missed(checkpoint, self._audience, begun, strategy.records.unfinished.clients)
        if checkpoint.round < run.num_rounds:
            log.info("resuming after round %d", checkpoint.round)
            run.participants.warn_of_unasked()
        else:
            log.warning(
                "the run has finished its %s, and nothing is left to do: raise %s to continue it",
                counted(checkpoint.round, "round"),
                name_of_option(directory, "num_rounds", "num-server-rounds"),
            )
        return checkpoint.round, arrays
