"""The records of a run in progress: what its observers count, its time, its summary."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from flwr_splitmix.events import EvaluationResult, RoundDone
from flwr_splitmix.observers import (
    ClientTimes,
    ExchangeKinds,
    Metrics,
    Observer,
    UnfinishedRounds,
    progress_line,
)
from flwr_splitmix.observers.metrics import evaluation_columns
from flwr_splitmix.runs.epsilon import epsilon_of
from flwr_splitmix.server.intake.epsilons import ReportedEpsilons
from flwr_splitmix.server.record.clock import RunClock
from flwr_splitmix.server.record.recording import Recording
from flwr_splitmix.server.record.summary import summarise

log = logging.getLogger("flwr.splitmix")

_EVALUATED = "evaluated-after-loss"
"""Name, in a checkpoint after a last round that was lost, of the columns of its evaluation."""

_SECONDS = "wall_s"
"""Name, in every checkpoint, of the seconds that the run had taken."""


class RunRecords:
    """The records of a run, with or without a directory that they are written to.

    Parameters
    ----------
    metrics
        Makes the rows; None makes the standard rows.
    recording
        Facts about the strategy's shape.

    Attributes
    ----------
    clients, exchanges
        Times of the clients and kinds of exchanges, as observers count them.
    unfinished
        The rounds that clients began and did not finish; an observer.
    reported_epsilons
        The epsilons that clients report; an observer.
    clock
        The time that the run takes.
    """

    def __init__(self, metrics: Metrics | None, recording: Recording) -> None:
        self.metrics = metrics or Metrics()
        self.metrics.labels = recording.labels
        self.clients = ClientTimes()
        self.exchanges = ExchangeKinds()
        self.unfinished = UnfinishedRounds(recording.protection)
        self.reported_epsilons = ReportedEpsilons(self.unfinished)
        self.clock = RunClock()
        self._mixtures = recording.mixtures
        self._evaluated: Mapping[str, Any] = {}
        """The columns of an evaluation after a last round that was lost, with its round."""

    @property
    def observers(self) -> list[Observer]:
        """The observers among them, in the order used by checkpoints."""
        return [self.metrics, self.clients, self.exchanges, self.unfinished, self.reported_epsilons]

    @property
    def has_epsilon(self) -> bool:
        """Whether a row has an epsilon."""
        return any(epsilon_of(row) is not None for row in self.metrics.rows)

    def begin(self, *, continues_fit: bool) -> None:
        """Begin a run: forget the results of an earlier one of the strategy.

        Parameters
        ----------
        continues_fit
            Whether the clients are those of the earlier run. If not, what these left unfinished is
            forgotten, too: others get their indices.
        """
        self.metrics.rows, self._evaluated = [], {}
        self.clock.restart()
        self.reported_epsilons.forget()
        if not continues_fit:
            self.unfinished.forget()

    def go_on(self, rows: Sequence[Mapping[str, Any]], kept: Mapping[str, Any]) -> None:
        """Continue a run.

        Parameters
        ----------
        rows
            Those of its rounds.
        kept
            The plain values of its checkpoint, `to_keep` or `to_keep_of_lost` among them.
        """
        self.metrics.rows = [dict(row) for row in rows]
        self._evaluated = kept.get(_EVALUATED, {})
        self.clock.restart(float(kept.get(_SECONDS, 0.0)))

    @property
    def to_keep(self) -> dict[str, Any]:
        """Values for every checkpoint of the run."""
        return {_SECONDS: self.clock.seconds}

    @property
    def to_keep_of_lost(self) -> dict[str, Any]:
        """Values for the checkpoint after a last round that was lost."""
        return {_EVALUATED: self._evaluated, **self.to_keep}

    @property
    def of_clients(self) -> dict[str, Any]:
        """Facts for a run's directory about its clients and messages, as JSON values."""
        return {"clients": self.clients.state(), "messages": self.exchanges.state()}

    def end_round(self, event: RoundDone) -> None:
        """Count the time of a round that has ended, and log one line."""
        self.clock.end_round()
        seconds_left = self.clock.seconds_of(event.num_rounds - event.server_round)
        log.info("%s", progress_line(event.row, event.num_rounds, seconds_left))

    def end_lost(self, server_round: int, evaluation: EvaluationResult | None) -> None:
        """Keep the evaluation after the last round, which was lost, as the round has no row."""
        if evaluation is None:
            return
        self._evaluated = {"round": server_round, **evaluation_columns(evaluation)}
        log.info(
            "after round %d, which was lost: top-1 %.4f (%s)",
            server_round,
            evaluation.accuracy,
            evaluation.kind,
        )

    def summary(self, facts: Mapping[str, Any], model: object) -> dict[str, Any]:
        """Summarise the rows: totals, the last evaluation, and further facts of the run.

        Parameters
        ----------
        model
            The model's name in the run's configuration; None if there is none.
        """
        return summarise(
            self.metrics.rows,
            facts,
            evaluated=self._evaluated,
            mixtures=self._mixtures,
            model=model,
            seconds=self.clock.seconds,
        )
