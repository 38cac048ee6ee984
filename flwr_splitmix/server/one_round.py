"""One round of a strategy: clients attach, train, answer, and the model is evaluated."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import strategy as flower
from torch import Tensor

from flwr_splitmix.events import EvaluationResult, RoundBegun, RoundDone
from flwr_splitmix.hiding.epsilons import is_epsilon
from flwr_splitmix.links import Clients, LinkError, LocalLink
from flwr_splitmix.links.ticket import to_tensors
from flwr_splitmix.observers import Audience
from flwr_splitmix.observers.metrics import LOSS
from flwr_splitmix.server.aggregation import AggregatorError
from flwr_splitmix.server.aggregation.answers import (
    aggregated,
    check_finite,
    messages_of,
    training_messages_of,
)
from flwr_splitmix.server.evaluation.of_round import checked_result, evaluate_model
from flwr_splitmix.server.evaluation.over_link import Evaluation
from flwr_splitmix.server.intake.epsilons import ReportedEpsilons
from flwr_splitmix.server.intake.replies import ReplyIntake
from flwr_splitmix.server.job import Job
from flwr_splitmix.server.naming import name_reasons, reasons
from flwr_splitmix.server.participants import DrawAgainError
from flwr_splitmix.server.round_messages import RoundMessages
from flwr_splitmix.server.steps.planning import Agreement, announced_steps, taken_steps
from flwr_splitmix.words import are, counted

log = logging.getLogger("flwr.splitmix")


class OneRound(RoundMessages):
    """The part of a strategy that runs one round; `RoundLoop` sets the attributes.

    Attributes
    ----------
    over
        Why the run ends after this round, if it does: set by a subclass within a round, or by an
        observer that asks to stop.
    """

    audience: Audience
    evaluation: Evaluation
    evaluate_every: int
    over: str
    _epsilons: ReportedEpsilons
    _intake: ReplyIntake
    _agreed: Agreement | None

    @abstractmethod
    def _snapshot(self, arrays: ArrayRecord) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a checkpoint holds: tensors and plain values."""

    def _round(self, job: Job, server_round: int) -> None:
        result = job.result
        began = time.perf_counter()
        self._participants.forget_draw()
        made = self.configure_train(server_round, result.arrays, job.train_config, job.grid)
        messages = training_messages_of(made, self, server_round)
        with self._open_link.round(job.grid, messages, self.audience.on_exchange) as clients:
            announced = self._begin_round(clients, result.arrays)
            attached = time.perf_counter()
            taken = self.train_round(clients, server_round)
            steps = taken_steps(type(self), taken, announced)
            step_seconds = time.perf_counter() - attached
        norms, means = self._aggregate_replies(clients, result)
        seconds = time.perf_counter() - began
        failures = self._participants.finish_round(clients)
        self.over = self.over or self.audience.stop
        evaluation = self._evaluate(job, server_round)
        epsilons = self._epsilons.largest()  # the evaluation has spent some, too
        means |= epsilons
        # An aggregator's mean of epsilons would be nobody's.
        result.train_metrics_clientapp[server_round].update(epsilons)
        event = RoundDone(
            server_round=server_round,
            num_rounds=self.num_rounds,
            seconds=seconds,
            steps=steps,
            step_seconds=step_seconds,
            clients_alive=len(clients.nodes),
            failures=failures,
            client_seconds=clients.node_seconds,
            evaluation=evaluation,
            client_means=means,
            update_norms=norms,
            epsilons=self.epsilons(),
            epsilon=self.epsilon(),
            late=dict(sorted(clients.late.items())),
        )
        event = self.recorder.metrics.completed(event)
        self.audience.on_round(event)
        self.over = self.over or self.audience.stop
        if failures:
            log.warning("round %d went on without %s", server_round, name_reasons(failures))
        self.recorder.end_round(event, lambda: self._snapshot(result.arrays))

    def _begin_round(self, clients: Clients, arrays: ArrayRecord) -> int | None:
        """Record and tell that a round begins with the clients that have attached to it.

        Returns
        -------
        Its number of steps, as announced; None if it is not known.
        """
        self._participants.admit(clients, self.min_nodes, what=f"round {clients.server_round}")
        self.require(clients)
        steps = self._agree_on_steps(clients)
        self.require(clients)
        if self.keeps_ledger:
            self._participants.warn_of_seeds(clients)
        self.recorder.begin(
            clients.server_round, clients.nodes, steps=steps, required=self.keeps_ledger
        )
        averages = self.aggregator.averages
        self.audience.on_begin(
            RoundBegun(
                clients.server_round,
                attempts={c: self.recorder.unfinished.of(c) for c in clients.nodes},
                averaged=averages,
                descriptions={c: clients.descriptions[c] for c in clients.alive},
                segment=partial(to_tensors, arrays) if averages else None,
                nodes=clients.nodes,
                steps=steps,
                rounded=self.link is not None and self.link.rounds_uploads,
            )
        )
        return steps

    def _agree_on_steps(self, clients: Clients) -> int | None:
        """Return what `agree`, perhaps a user's own, says of the round's length, once checked."""
        self._agreed = None
        said = self.agree(clients)
        if self.fixes_length and self._agreed is None:
            raise RuntimeError(
                f"agree of {type(self).__name__} must call super().agree(clients), which leaves "
                "out who does not fit and fixes the round's length, and return its result"
            )
        return announced_steps(type(self), said, self._agreed)

    def _aggregate_replies(
        self, clients: Clients, result: flower.Result
    ) -> tuple[dict[int, float], dict[str, float]]:
        """Check and aggregate the replies of a round, and store arrays and metrics in the result.

        Returns
        -------
        By client index the norm of its update, and by name the means of what clients report.
        """
        if self.aggregator.averages:
            norms, means = self._intake.check(clients, result.arrays, robust=self.aggregator.robust)
        else:
            norms, means = {}, self._intake.check_sizes(clients)
        self.require(clients)
        replies = list(clients.replies.values())
        # Before a strategy sees them: some of Flower's take the arrays out of the replies.
        averaged = replies[:1] if self.aggregator.averages else ()
        sent = next((dict(own.content.array_records["arrays"]) for own in averaged), result.arrays)
        made = self.aggregate_train(clients.server_round, replies)
        arrays, metrics = aggregated(made, self, sent, self.aggregator.once)
        if self.aggregator.averages and not arrays:
            raise AggregatorError(
                f"aggregate_train of {type(self).__name__} returns no arrays, so that no client's "
                "lower segment would learn; return those of super().aggregate_train"
            )
        if arrays:  # also of a method that is overridden
            check_finite(arrays, self, sent, result.arrays)
        result.arrays = arrays or result.arrays
        names = [name for name in means if is_epsilon(name)]
        self._epsilons.take(clients, names)
        reported = metrics or MetricRecord(dict(means))
        if LOSS in means:  # the aggregator has none if one client had nothing to predict
            reported.setdefault(LOSS, means[LOSS])
        result.train_metrics_clientapp[clients.server_round] = reported
        return norms, means

    def _evaluate(self, job: Job, server_round: int) -> EvaluationResult | None:
        """Evaluate the model if due: every `evaluate_every` rounds, and after the last."""

        def over_link() -> EvaluationResult | None:
            while True:
                try:
                    return self._evaluate_over_link(job, server_round)
                except DrawAgainError:
                    continue

        last = server_round == self.num_rounds or bool(self.over)
        if server_round % self.evaluate_every and not last:
            return None
        evaluate = None if self.evaluation == "none" else over_link
        return evaluate_model(server_round, job.result, job.evaluate_fn, evaluate)

    def _evaluate_over_link(self, job: Job, server_round: int) -> EvaluationResult | None:
        """Evaluate with the clients that `configure_evaluate` asks.

        Raises
        ------
        DrawAgainError
            If none of them has data, but others may have.
        """
        arrays, config = job.result.arrays, job.evaluate_config
        self._participants.forget_draw()
        made = self.configure_evaluate(server_round, arrays, config, job.grid)
        messages = messages_of(made, self, "configure_evaluate")
        if not messages:
            return None
        with self._open_link.round(job.grid, messages, self.audience.on_exchange) as clients:
            self._participants.admit(clients, 1, what=f"the evaluation of round {server_round}")
            asked = list(clients.nodes)
            required = self.keeps_ledger
            self.recorder.begin(server_round, asked, evaluates=True, required=required)
            with self.recorder.unfinished.evaluating(asked, clients.failures):
                result = checked_result(self.evaluate_round(clients), self)
        self._participants.finish_evaluation(clients)
        return result

    def require(self, clients: Clients) -> None:
        """Raise LinkError if fewer than `min_nodes` clients are left."""
        left = len(clients.nodes)
        if left < self.min_nodes:
            key = "min_nodes" if isinstance(self._open_link, LocalLink) else "min-nodes"
            number, named = self._intake.unusual
            before = number == clients.server_round - 1 and not self.aggregator.robust
            said = f" (round {number} averaged an unusual update of {named}, which may be why)"
            raise LinkError(
                f"round {clients.server_round}: {counted(left, 'client')} {are(left)} left, "
                f"{self._said_least(key)}: {reasons(clients) or 'no others were asked'}"
                + (said if named and before else "")
            )

    def _said_least(self, key: str) -> str:
        """Return, for a message, why a round needs `min_nodes` clients; `key` is its name there."""
        return f"{key} is {self.min_nodes}"
