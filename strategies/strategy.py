"""The base of all strategies: a mixer, an upper segment, an aggregator, and the loop of rounds."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr_splitmix.strategies.aggregation import LowerAggregator
from flwr_splitmix.strategies.evaluation import (
    EvaluateFn,
    Evaluation,
    central_result,
    evaluate_clients,
)
from flwr_splitmix.strategies.messages import messages_to, with_tickets
from flwr_splitmix.strategies.options import check_options
from flwr_splitmix.strategies.recording import Recorder
from flwr_splitmix.strategies.remarks import Remarks
from flwr_splitmix.strategies.server_segment import ServerSegment, ServerUpdate
from flwr_splitmix.strategies.uploads import UploadError, agree_on_shape, read_upload, reasons
from torch import Tensor, nn

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.device import Precision
from flwr_splitmix.events import EvaluationResult, Exchange, RoundDone, StepDone
from flwr_splitmix.links import Clients, Link, LinkError, LocalLink, RayLink
from flwr_splitmix.links.ticket import Ticket, to_arrays, to_tensors
from flwr_splitmix.mixers import Mixer, NoMixing, Plan, Upload
from flwr_splitmix.observers import Observer
from flwr_splitmix.runs import Run
from flwr_splitmix.schedule import OptimizerFactory, Schedule
from flwr_splitmix.seeding import derive_seed, generator

log = logging.getLogger("flwr.splitmix")


class SplitStrategy(flower.Strategy):
    """Split learning as a Flower strategy: messages carry the round, a link carries the steps.

    Parameters
    ----------
    upper
        The upper segment: smashed data (b, prefix + N, d) to logits (b, L).
    mixer
        What happens to smashed data between clients and upper segment; None is no mixing.
    aggregator
        A Flower strategy that aggregates the lower segments once a round; None leaves them with
        their clients.
    num_classes
        L; by default the upper segment's `num_classes`.
    optimizer, schedule
        Of the upper segment; by default AdamW (lr 1e-3, weight decay 0.05) with a cosine.
    server_update
        "sequential" (one optimizer step for each group), "sum" or "mean" (one joint step).
    device, precision
        Of the upper segment; "auto" chooses.
    steps_per_round
        By default the mean number of full batches of the round's clients, times
        `epochs_per_round`.
    fraction_train
        Fraction of the nodes that takes part in a round; drawn from the seed.
    min_nodes
        With fewer clients a round ends with an error; by default what the mixer needs.
    evaluation, evaluate_every
        "federated" or "benchmark" evaluation over the link every so many rounds and after the
        last. For central evaluation hand an `evaluate_fn` to `start`.
    checkpoint_every
        Rounds between checkpoints.
    seed
        Of every public draw: a run repeats bit for bit on a CPU with the same thread count.
    link
        None joins the simulation's Ray session.
    observers
        Watch exchanges, steps and rounds.
    run
        The run's directory; None writes nothing. A run with checkpoints is continued.

    Raises
    ------
    ValueError
        For an option outside its range, or an aggregator that cannot be used.
    """

    def __init__(
        self,
        upper: nn.Module,
        *,
        mixer: Mixer | None = None,
        aggregator: flower.Strategy | None = None,
        num_classes: int | None = None,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        server_update: ServerUpdate = "sequential",
        device: str = "auto",
        precision: Precision = "auto",
        steps_per_round: int | None = None,
        epochs_per_round: int = 1,
        fraction_train: float = 1.0,
        min_nodes: int | None = None,
        evaluation: Evaluation = "none",
        evaluate_every: int = 1,
        checkpoint_every: int = 1,
        seed: int = 0,
        link: Link | None = None,
        observers: Sequence[Observer] = (),
        run: Run | None = None,
    ) -> None:
        check_options(
            fraction_train,
            evaluation,
            steps_per_round=steps_per_round,
            epochs_per_round=epochs_per_round,
            min_nodes=min_nodes,
            evaluate_every=evaluate_every,
        )
        self.upper = ServerSegment(
            upper,
            num_classes=num_classes,
            optimizer=optimizer,
            schedule=schedule,
            server_update=server_update,
            device=device,
            precision=precision,
        )
        self.mixer = mixer or NoMixing()
        self.aggregator = LowerAggregator(aggregator)
        self.steps_per_round = steps_per_round
        self.epochs_per_round = epochs_per_round
        self.fraction_train = fraction_train
        self.min_nodes = min_nodes or self.mixer.min_members
        self.evaluation: Evaluation = evaluation
        self.evaluate_every = evaluate_every
        self.seed = seed
        self.link = link
        self.recorder = Recorder(run, checkpoint_every)
        self.observers = [*observers, self.recorder.metrics]
        self.num_rounds = 0
        self._resumed = False
        self._trained: dict[int, int] = {}
        self._remarks = Remarks()

    # ---- the run

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
        if self.link is None:
            run = self.recorder.run
            self.link = RayLink(
                state_dir=None if run is None else run.clients_dir,
                attach_timeout=min(timeout, 120.0),
            )
        configs = (train_config or ConfigRecord(), evaluate_config or ConfigRecord())
        return self._run(grid, initial_arrays, num_rounds, configs, evaluate_fn)

    def fit(
        self,
        clients: Sequence[SplitClient],
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
        run = self.recorder.run
        self.link = LocalLink(clients, None if run is None else run.clients_dir)
        arrays = initial_arrays or to_arrays(clients[0].segment.state_dict())
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
        finally:
            self.recorder.save_unsaved()
            link.close()
        self.recorder.finish(
            {
                "strategy": type(self).__name__,
                "clients": len(self._trained),
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
        messages = self.configure_train(server_round, result.arrays, configs[0], grid)
        with link.round(grid, messages, self._on_exchange) as clients:
            self._require(clients)
            steps = self.train_round(clients, server_round)
        self._require(clients)
        arrays, metrics = self.aggregate_train(server_round, clients.replies)
        result.arrays = arrays or result.arrays
        result.train_metrics_clientapp[server_round] = metrics or MetricRecord()
        self._trained.update(dict.fromkeys(clients.alive, server_round))
        seconds = time.perf_counter() - began
        evaluation: EvaluationResult | None = None
        if server_round % self.evaluate_every == 0 or server_round == self.num_rounds:
            evaluation = self._evaluate(grid, server_round, result, configs[1], evaluate_fn)
        event = RoundDone(
            server_round,
            self.num_rounds,
            seconds,
            steps,
            len(clients.alive),
            clients.failures,
            clients.seconds,
            evaluation,
        )
        for observer in self.observers:
            observer.on_round(event)
        if clients.failures:
            log.warning("round %d went on without %s", server_round, reasons(clients))
        self.recorder.end_round(event, lambda: self._snapshot(server_round, result.arrays))

    @property
    def _open_link(self) -> Link:
        if self.link is None:
            raise LinkError("a strategy has no link before start() or fit()")
        return self.link

    # ---- the steps of a round

    def train_round(self, clients: Clients, server_round: int) -> int:
        """Train for one round; returns the number of steps.

        One exchange a step: the gradient of the last step travels with the plan of the next.
        """
        shape, batches = agree_on_shape(clients, self.upper.module)
        self._require(clients)
        self._remarks.on_clients(clients, self.mixer, shape, batches, self._trained)
        steps = self.steps_per_round or batches * self.epochs_per_round
        epoch = max(1, steps // self.epochs_per_round)
        gradients: Mapping[int, list[Tensor | None]] = {}
        for number in range(steps):
            order_rng = self._rng("groups", server_round, number // epoch)
            plan = self.mixer.plan(
                clients.alive,
                shape,
                self._rng("plan", server_round, number),
                order_rng if self.mixer.regroup == "epoch" else None,
            )
            progress = server_round - 1 + number / steps
            uploads = self._step(clients, number, progress, gradients, plan)
            mixed = self.mixer.merge(
                uploads, plan, num_classes=self.upper.num_classes, device=self.upper.device
            )
            result = self.upper.learn(
                mixed,
                progress,
                self.num_rounds,
                derive_seed(self.seed, "upper", server_round, number),
                self._rng("order", server_round, number),
            )
            gradients = self.mixer.split(result.gradient, mixed, plan)
            event = StepDone(server_round, number, plan, uploads, mixed, result)
            for observer in self.observers:
                observer.on_step(event)
        self._step(clients, steps, server_round, gradients, None)
        return steps

    def _step(
        self,
        clients: Clients,
        number: int,
        progress: float,
        gradients: Mapping[int, list[Tensor | None]],
        plan: Plan | None,
    ) -> dict[int, Upload]:
        """Exchange once with every client; those that fail or send nonsense are left out."""
        replies = clients.call(
            "step",
            {
                client: {
                    "number": number,
                    "progress": progress,
                    "gradient": gradients.get(client),
                    "plan": None if plan is None else plan.for_node(client),
                }
                for client in clients.alive
            },
        )
        self._require(clients)
        uploads: dict[int, Upload] = {}
        for client, reply in replies.items() if plan is not None else ():
            try:
                uploads[client] = read_upload(
                    reply, plan, client, self.upper.num_classes, self.upper.smashed_dtype
                )
            except UploadError as error:
                clients.fail(client, str(error))
        self._require(clients)
        return uploads

    def _require(self, clients: Clients) -> None:
        if len(clients.alive) < self.min_nodes:
            raise LinkError(
                f"round {clients.server_round}: {len(clients.alive)} clients are left, min-nodes "
                f"is {self.min_nodes}: {reasons(clients) or 'no others were asked'}"
            )

    def _rng(self, purpose: str, *place: int) -> np.random.Generator:
        return generator(self.seed, purpose, *place)

    def _on_exchange(self, event: Exchange) -> None:
        for observer in self.observers:
            observer.on_exchange(event)

    # ---- Flower's side of a round

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid | None,
    ) -> list[Message]:
        """Make the round's train messages: lower segment, configuration and ticket, by client."""
        nodes = self._sample(grid, server_round, "train")
        self.mixer.check_clients(len(nodes))
        messages = self.aggregator.configure(
            server_round, arrays, config, grid, list(nodes.values())
        )
        return with_tickets(messages, nodes, self._ticket(server_round, server_round - 1))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the lower segments, if the strategy does."""
        return self.aggregator.aggregate(server_round, list(replies))

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid | None,
    ) -> list[Message]:
        """Make the evaluate messages of the round's sample of nodes."""
        nodes = self._sample(grid, server_round, "evaluate")
        content = RecordDict({"arrays": arrays, "config": config})
        messages = messages_to(
            list(nodes.values()), content, MessageType.EVALUATE, in_run=grid is not None
        )
        return with_tickets(messages, nodes, self._ticket(server_round, server_round))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None: the server itself computes what clients' smashed data are worth."""
        return None

    def summary(self) -> None:
        """Log what the strategy is made of."""
        aggregator = self.aggregator.strategy
        log.info(
            "%s: mixer %s, lower segments %s, upper segment on %s in %s, %s update",
            type(self).__name__,
            type(self.mixer).__name__,
            f"aggregated by {type(aggregator).__name__}" if aggregator else "stay with clients",
            self.upper.device,
            str(self.upper.dtype).removeprefix("torch."),
            self.upper.server_update,
        )
        if self.recorder.run is not None:
            log.info("run %s: %s", self.recorder.run.id, self.recorder.run.path)

    def _sample(self, grid: Grid | None, server_round: int, purpose: str) -> dict[int, int]:
        """Draw the round's clients: client index -> node id, sorted by index."""
        directory = self._open_link.directory(grid, self.min_nodes)
        size = max(self.min_nodes, round(self.fraction_train * len(directory)))
        chosen = self._rng(f"sample-{purpose}", server_round).permutation(sorted(directory))[:size]
        return {int(client): directory[int(client)] for client in sorted(chosen)}

    def _ticket(self, server_round: int, state_round: int) -> Ticket:
        run = self.recorder.run
        return Ticket(
            client=-1,
            seed=self.seed,
            server_round=server_round,
            num_rounds=self.num_rounds,
            arrays="always" if self.aggregator.averages else "initial",
            returns_arrays=self.aggregator.averages,
            state_round=state_round,
            kept_rounds=self.recorder.kept_rounds,
            run_config=json.dumps(run.config) if run and self._resumed else "",
        )

    # ---- evaluation and resuming

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
        with self._open_link.round(grid, messages, self._on_exchange) as clients:
            found = evaluate_clients(clients, self.upper, self.evaluation)
        if found is not None:
            result.evaluate_metrics_clientapp[server_round] = MetricRecord(
                {
                    "accuracy": found.accuracy,
                    "loss": found.loss,
                    "spread": found.spread or 0.0,
                    "num-examples": found.examples,
                }
            )
        return central or found

    def _snapshot(
        self, server_round: int, arrays: ArrayRecord
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, meta = self.upper.state()
        lower = {f"lower.{name}": t for name, t in to_tensors(arrays).items()}
        trained = {str(client): done for client, done in self._trained.items()}
        return {**tensors, **lower, **self.aggregator.state()}, {**meta, "trained": trained}

    def _resume(self, initial: ArrayRecord) -> tuple[int, ArrayRecord]:
        """Continue from the run's newest checkpoint: (finished rounds, lower segment's arrays)."""
        checkpoint = self.recorder.resume()
        if checkpoint is None:
            return 0, initial
        self._resumed = True
        self.upper.restore(checkpoint.tensors, checkpoint.meta)
        self.aggregator.restore(checkpoint.tensors)
        self._trained = {int(c): int(done) for c, done in checkpoint.meta["trained"].items()}
        lower = {
            name.removeprefix("lower."): t
            for name, t in checkpoint.tensors.items()
            if name.startswith("lower.")
        }
        log.info("resuming after round %d", checkpoint.round)
        return checkpoint.round, to_arrays(lower)
