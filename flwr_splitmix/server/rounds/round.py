"""A round of a strategy: clients attach, train, answer, and the model is evaluated."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager
from functools import partial

from flwr.app import ArrayRecord, Message, MetricRecord

from flwr_splitmix.events import EvaluationResult, RoundBegun, RoundDone
from flwr_splitmix.hiding.epsilons import is_epsilon
from flwr_splitmix.links import Clients
from flwr_splitmix.links.arrays import to_tensors
from flwr_splitmix.observers.metrics import LOSS
from flwr_splitmix.server.aggregation import AggregatorError
from flwr_splitmix.server.aggregation.answers import (
    aggregated,
    check_finite,
    messages_of,
    training_messages_of,
)
from flwr_splitmix.server.evaluation.of_round import checked_result, evaluate_model
from flwr_splitmix.server.naming import name_reasons
from flwr_splitmix.server.nodes.participants import DrawAgainError
from flwr_splitmix.server.rounds.hooks import RoundHooks
from flwr_splitmix.server.steps.round_length import announced_steps, taken_steps

log = logging.getLogger("flwr.splitmix")


class OneRound:
    """One round of a run.

    Parameters
    ----------
    strategy
        The strategy whose hooks the round calls. It reads and replaces the arrays of the result of
        its run (`run_state`), and adds to its metrics.
    server_round
        The round's number, from 1.
    """

    def __init__(self, strategy: RoundHooks, server_round: int) -> None:
        self._strategy, self._run = strategy, strategy.run_state
        self._number = server_round

    def run(self) -> RoundDone:
        """Train and evaluate; return the round's result, as observers get it.

        Raises
        ------
        DrawAgainError
            If too few of the clients that were drawn have data, but others may have.
        RoundLostError
            If the round is lost, but not the run.
        LinkError
            If fewer than `min_nodes` clients are left.
        """
        strategy, run = self._strategy, self._run
        began = time.perf_counter()
        run.participants.forget_draw()
        returned = strategy.configure_train(
            self._number, run.result.arrays, run.train_config, run.grid
        )
        messages = training_messages_of(returned, strategy, self._number)
        with self._clients(messages) as clients:
            announced = self._begin(clients)
            attached = time.perf_counter()
            returned_steps = strategy.train_round(clients, self._number)
            steps = taken_steps(type(strategy), returned_steps, announced)
            step_seconds = time.perf_counter() - attached
        norms, means = self._aggregate(clients)
        seconds = time.perf_counter() - began
        failures = run.participants.finish_round(clients)
        run.stop_if_asked_by(strategy.audience)
        evaluation = self.evaluate()
        # The evaluation has spent some, too.
        largest_reported = strategy.records.reported_epsilons.largest()
        means |= largest_reported
        # An aggregator's mean of epsilons would be no client's.
        run.result.train_metrics_clientapp[self._number].update(largest_reported)
        event = RoundDone(
            server_round=self._number,
            num_rounds=run.num_rounds,
            seconds=seconds,
            steps=steps,
            step_seconds=step_seconds,
            clients_alive=len(clients.nodes),
            failures=failures,
            client_seconds=clients.node_seconds,
            evaluation=evaluation,
            client_means=means,
            update_norms=norms,
            epsilons=strategy.epsilons(),
            epsilon=strategy.epsilon(),
            late=dict(sorted(clients.late.items())),
        )
        event = strategy.records.metrics.completed(event)
        strategy.audience.on_round(event)
        run.stop_if_asked_by(strategy.audience)
        if failures:
            log.warning("round %d continued without %s", self._number, name_reasons(failures))
        return event

    def evaluate(self) -> EvaluationResult | None:
        """Evaluate the model if due: every `evaluate_every` rounds, and after the last."""
        strategy, run = self._strategy, self._run

        def over_link() -> EvaluationResult | None:
            while True:
                try:
                    return self._evaluate_over_link()
                except DrawAgainError:
                    continue

        last = self._number == run.num_rounds or bool(run.stop_reason)
        if self._number % strategy.evaluate_every and not last:
            return None
        evaluate = None if strategy.evaluation == "none" else over_link
        return evaluate_model(self._number, run.result, run.evaluate_fn, evaluate)

    def _clients(self, messages: list[Message]) -> AbstractContextManager[Clients]:
        """Return the clients that answer messages, as they attach to the link."""
        run, observe = self._run, self._strategy.audience.on_exchange
        return run.link.round(run.grid, messages, observe)

    def _begin(self, clients: Clients) -> int | None:
        """Record that a round begins with the clients that have attached, and notify observers.

        Returns
        -------
        Its number of steps, as announced; None if it is not known.
        """
        strategy, run, arrays = self._strategy, self._run, self._run.result.arrays
        averages = strategy.aggregator.averages
        run.participants.admit(clients, strategy.min_nodes, purpose=f"round {self._number}")
        strategy.require(clients)
        steps = self._agreed_steps(clients)
        strategy.require(clients)
        if strategy.keeps_ledger:
            run.participants.warn_of_seeds(clients)
        strategy.recorder.begin(
            self._number, clients.nodes, steps=steps, required=strategy.keeps_ledger
        )
        strategy.audience.on_begin(
            RoundBegun(
                self._number,
                attempts={c: strategy.records.unfinished.of(c) for c in clients.nodes},
                averaged=averages,
                descriptions={c: clients.descriptions[c] for c in clients.alive},
                segment=partial(to_tensors, arrays) if averages else None,
                first=partial(to_tensors, run.initial) if run.initial else None,
                nodes=clients.nodes,
                steps=steps,
                rounded=run.link.rounds_uploads,
            )
        )
        return steps

    def _agreed_steps(self, clients: Clients) -> int | None:
        """Have the strategy agree on the round; return its number of steps, None if not known.

        Raises
        ------
        RuntimeError
            If a user's own `agree` fixes no length, or another one than the class's own.
        """
        strategy, run = self._strategy, self._run
        run.agreement = None
        returned = strategy.agree(clients)
        if strategy.fixes_length and run.agreement is None:
            raise RuntimeError(
                f"agree of {type(strategy).__name__} must call super().agree(clients), which "
                "excludes clients that do not fit and fixes the round's length, and return "
                "its result"
            )
        return announced_steps(type(strategy), returned, run.agreement)

    def _aggregate(self, clients: Clients) -> tuple[dict[int, float], dict[str, float]]:
        """Check and aggregate the round's replies, and store arrays and metrics in the result.

        Returns
        -------
        The norm of each client's update, and by name the means of what clients report.
        """
        strategy, result = self._strategy, self._run.result
        aggregator, intake = strategy.aggregator, self._run.intake
        if aggregator.averages:
            norms, means = intake.check(clients, result.arrays, robust=aggregator.robust)
        else:
            norms, means = {}, intake.check_example_counts(clients)
        strategy.require(clients)
        arrays, metrics = self._aggregated(list(clients.replies.values()))
        if aggregator.averages and not arrays:
            raise AggregatorError(
                f"aggregate_train of {type(strategy).__name__} returns no arrays, so that no "
                "client's lower segment would learn; return those of super().aggregate_train"
            )
        result.arrays = arrays or result.arrays
        strategy.records.reported_epsilons.take(
            clients, [name for name in means if is_epsilon(name)]
        )
        reported = metrics or MetricRecord(dict(means))
        # An aggregator weights the loss by examples, and has none if one client has none.
        if LOSS in means:
            reported[LOSS] = means[LOSS]
        result.train_metrics_clientapp[self._number] = reported
        return norms, means

    def _aggregated(self, replies: list[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the checked result of `aggregate_train`.

        The aggregator has checked what it made; what an overriding method returns is checked here.
        """
        strategy, before = self._strategy, self._run.result.arrays
        aggregator = strategy.aggregator
        # Of the object, not its class: the method may be set on the object, too.
        method = getattr(strategy.aggregate_train, "__func__", None)
        if method is RoundHooks.aggregate_train:
            return strategy.aggregate_train(self._number, replies)
        # Before a strategy sees them: some of Flower's take the arrays out of the replies.
        averaged = replies[:1] if aggregator.averages else ()
        like = next((dict(reply.content.array_records["arrays"]) for reply in averaged), before)
        returned = strategy.aggregate_train(self._number, replies)
        arrays, metrics = aggregated(returned, strategy, like, aggregator.once)
        check_finite(arrays or {}, strategy, like, before)
        return arrays, metrics

    def _evaluate_over_link(self) -> EvaluationResult | None:
        """Evaluate with the clients that `configure_evaluate` asks.

        Raises
        ------
        DrawAgainError
            If none of them has data, but others may have.
        """
        strategy, run = self._strategy, self._run
        run.participants.forget_draw()
        returned = strategy.configure_evaluate(
            self._number, run.result.arrays, run.evaluate_config, run.grid
        )
        messages = messages_of(returned, strategy, "configure_evaluate")
        if not messages:
            return None
        with self._clients(messages) as clients:
            run.participants.admit(clients, 1, purpose=f"the evaluation of round {self._number}")
            client_indices = list(clients.nodes)
            strategy.recorder.begin(
                self._number, client_indices, evaluates=True, required=strategy.keeps_ledger
            )
            with strategy.records.unfinished.evaluating(client_indices, clients.failures):
                result = checked_result(strategy.evaluate_round(clients), strategy)
        run.participants.finish_evaluation(clients)
        return result
