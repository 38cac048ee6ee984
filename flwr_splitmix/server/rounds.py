"""The loop of rounds that every strategy shares: link, training, aggregation, checkpoints."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from torch import Tensor

from flwr_splitmix.clients import Client
from flwr_splitmix.links import Clients, Link, LinkError, LocalLink
from flwr_splitmix.links.ticket import to_arrays
from flwr_splitmix.observers import Observer
from flwr_splitmix.observers.events import EvaluationResult, Exchange, RoundBegun, RoundDone
from flwr_splitmix.runs import Run
from flwr_splitmix.server.checkpointing import pack, unpack
from flwr_splitmix.server.evaluation.split import EvaluateFn, Evaluation, central_result, to_record
from flwr_splitmix.server.intake.replies import client_means, keep_sound_segments
from flwr_splitmix.server.intake.split import reasons
from flwr_splitmix.server.options import check_options
from flwr_splitmix.server.recording import Recorder
from flwr_splitmix.server.round_messages import RoundMessages, default_link

log = logging.getLogger("flwr.splitmix")


class RoundLoop(RoundMessages):
    """A Flower strategy whose rounds have steps over a link.

    A subclass says what a round of training is (`train_round`), how the server's part is measured
    over the link (`evaluate_round`), and what of the server's part a checkpoint holds.

    Parameters
    ----------
    aggregator
        A Flower strategy that aggregates the clients' segments once a round; None leaves them
        with their clients.
    min_nodes
        With fewer clients a round ends with an error.

    The other parameters are those of `SplitStrategy`.
    """

    def __init__(
        self,
        *,
        aggregator: flower.Strategy | None,
        min_nodes: int,
        fraction_train: float = 1.0,
        evaluation: Evaluation = "none",
        evaluate_every: int = 1,
        checkpoint_every: int = 1,
        seed: int = 0,
        link: Link | None = None,
        observers: Sequence[Observer] = (),
        run: Run | None = None,
    ) -> None:
        check_options(fraction_train, evaluation, evaluate_every=evaluate_every)
        recorder = Recorder(run, checkpoint_every)
        super().__init__(aggregator, min_nodes, fraction_train, seed, link, recorder)
        self.evaluation: Evaluation = evaluation
        self.evaluate_every = evaluate_every
        self.observers = [*observers, recorder.metrics]
        self.over = ""
        """Why there is no next round, if there is none: set by a subclass within a round."""
        self.trained: dict[int, int] = {}
        """By client index, the last round that it finished."""

    @abstractmethod
    def train_round(self, clients: Clients, server_round: int) -> int:
        """Train for one round; returns the number of steps."""

    @abstractmethod
    def evaluate_round(self, clients: Clients) -> EvaluationResult | None:
        """Measure the model over the link, as `evaluation` says."""

    @abstractmethod
    def server_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return all that the server learned: tensors and plain values."""

    @abstractmethod
    def restore_server(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `server_state`."""

    @property
    def keeps_ledger(self) -> bool:
        """Whether what is sent is accounted for, also if a round is repeated."""
        return False

    def epsilons(self) -> Mapping[int, float]:
        """Return by client index what of its privacy it has spent; empty without a ledger."""
        return {}

    def prepare(self, clients: Sequence[Client] | None) -> None:
        """Get ready for clients of this process, or for clients behind a link (None)."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> flower.Result:
        """Run the strategy inside a Flower run.

        Parameters
        ----------
        initial_arrays
            The lower segment that every client starts from.
        timeout
            Upper bound in seconds on the wait for clients to attach and to finish.
        evaluate_fn
            Central evaluation, called every `evaluate_every` rounds and after the last (not
            before the first).

        Raises
        ------
        LinkError
            If clients cannot be reached, or fewer than `min_nodes` are left.
        """
        self.prepare(None)
        if self.link is None:
            self.link = default_link(self.recorder.run, min(timeout, 120.0))
        configs = (train_config or ConfigRecord(), evaluate_config or ConfigRecord())
        return self._run(grid, initial_arrays, num_rounds, configs, evaluate_fn)

    def fit(
        self,
        clients: Sequence[Client],
        num_rounds: int = 3,
        *,
        initial_arrays: ArrayRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> flower.Result:
        """Run the strategy on clients of this process, without Flower's runtime and without Ray.

        Parameters
        ----------
        clients
            Live clients; their position is their index.
        initial_arrays
            The lower segment that all start from; None starts from the first client's.
        """
        self.aggregator.check_works_without_grid()
        self.prepare(clients)
        run = self.recorder.run
        self.link = LocalLink(clients, None if run is None else run.clients_dir)
        arrays = initial_arrays or to_arrays(clients[0].weights())
        return self._run(None, arrays, num_rounds, (ConfigRecord(), ConfigRecord()), evaluate_fn)

    def _run(
        self,
        grid: Grid | None,
        initial: ArrayRecord,
        num_rounds: int,
        configs: tuple[ConfigRecord, ConfigRecord],
        evaluate_fn: EvaluateFn | None,
    ) -> flower.Result:
        link = self._open_link
        self.num_rounds = num_rounds
        result = flower.Result()
        finished, result.arrays = self._resume(initial)
        self.summary()
        try:
            link.open(grid)
            for server_round in range(finished + 1, num_rounds + 1):
                self._round(grid, server_round, result, configs, evaluate_fn)
                if self.over:
                    log.warning("the run ends after round %d: %s", server_round, self.over)
                    break
        finally:
            self.recorder.save_unsaved()
            link.close()
        run = self.recorder.run
        self.recorder.finish(
            {
                "strategy": type(self).__name__,
                "model": None if run is None else run.config.get("model"),
                "clients": len(self.trained),
                "seed": self.seed,
            }
        )
        return result

    def _round(
        self,
        grid: Grid | None,
        server_round: int,
        result: flower.Result,
        configs: tuple[ConfigRecord, ConfigRecord],
        evaluate_fn: EvaluateFn | None,
    ) -> None:
        link = self._open_link
        began = time.perf_counter()
        if self.keeps_ledger:
            self.recorder.begin_round(server_round)
        messages = self.configure_train(server_round, result.arrays, configs[0], grid)
        with link.round(grid, messages, self._on_exchange) as clients:
            self.require(clients)
            begun = RoundBegun(
                server_round,
                self.recorder.attempt,
                self.aggregator.averages,
                {client: clients.descriptions[client] for client in clients.alive},
            )
            for observer in self.observers:
                observer.on_begin(begun)
            attached = time.perf_counter()
            steps = self.train_round(clients, server_round)
            step_seconds = time.perf_counter() - attached
        if self.aggregator.averages:
            keep_sound_segments(clients, result.arrays)
        self.require(clients)
        arrays, metrics = self.aggregate_train(server_round, clients.replies)
        result.arrays = arrays or result.arrays
        means = client_means(clients.replies)
        result.train_metrics_clientapp[server_round] = metrics or MetricRecord(dict(means))
        self.trained.update(dict.fromkeys(clients.alive, server_round))
        seconds = time.perf_counter() - began
        evaluation: EvaluationResult | None = None
        last = server_round == self.num_rounds or bool(self.over)
        if server_round % self.evaluate_every == 0 or last:
            evaluation = self._evaluate(grid, server_round, result, configs[1], evaluate_fn)
        event = RoundDone(
            server_round,
            self.num_rounds,
            seconds,
            steps,
            step_seconds,
            len(clients.alive),
            clients.failures,
            clients.seconds,
            evaluation,
            means,
            self.epsilons(),
        )
        for observer in self.observers:
            observer.on_round(event)
        if clients.failures:
            log.warning("round %d went on without %s", server_round, reasons(clients))
        self.recorder.end_round(event, lambda: self._snapshot(result.arrays))

    def _on_exchange(self, event: Exchange) -> None:
        for observer in self.observers:
            observer.on_exchange(event)

    def _evaluate(
        self,
        grid: Grid | None,
        server_round: int,
        result: flower.Result,
        config: ConfigRecord,
        evaluate_fn: EvaluateFn | None,
    ) -> EvaluationResult | None:
        central = None
        if evaluate_fn is not None:
            record = evaluate_fn(server_round, result.arrays)
            if record is not None:
                result.evaluate_metrics_serverapp[server_round] = record
            central = central_result(record)
        if self.evaluation == "none":
            return central
        messages = self.configure_evaluate(server_round, result.arrays, config, grid)
        found = None
        try:
            with self._open_link.round(grid, messages, self._on_exchange) as clients:
                found = self.evaluate_round(clients)
        except LinkError as error:  # the training of the round has finished and is kept
            log.warning("round %d could not be evaluated: %s", server_round, error)
        if found is not None:
            result.evaluate_metrics_clientapp[server_round] = to_record(found)
        return central or found

    def _snapshot(self, arrays: ArrayRecord) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return pack(self.server_state(), arrays, self.aggregator, self.observers, self.trained)

    def _resume(self, initial: ArrayRecord) -> tuple[int, ArrayRecord]:
        """Continue from the run's newest checkpoint: (finished rounds, lower segment's arrays)."""
        checkpoint = self.recorder.resume()
        if checkpoint is None:
            return 0, initial
        self._resumed = True
        self.restore_server(checkpoint.tensors, checkpoint.meta)
        arrays, self.trained = unpack(checkpoint, self.aggregator, self.observers)
        log.info("resuming after round %d", checkpoint.round)
        return checkpoint.round, arrays
