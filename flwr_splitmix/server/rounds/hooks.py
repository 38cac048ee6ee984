"""What a round asks of its strategy, and what an author's own strategy may override."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from torch import Tensor

from flwr_splitmix.clients import Client
from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.links import Clients, Link, LinkError, LocalLink
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.observers import Audience
from flwr_splitmix.seeding import generator
from flwr_splitmix.server.aggregation import LowerAggregator
from flwr_splitmix.server.evaluation.over_link import Evaluation
from flwr_splitmix.server.messages import messages_to, with_tickets
from flwr_splitmix.server.naming import reasons
from flwr_splitmix.server.record.checkpointing import facts_of
from flwr_splitmix.server.record.run_recorder import RunRecorder
from flwr_splitmix.server.record.run_records import RunRecords
from flwr_splitmix.server.rounds.known_clients import KnownClients
from flwr_splitmix.server.steps.planning import Agreement, announced_steps
from flwr_splitmix.words import are, counted


class RoundHooks(flower.Strategy):
    """Defines a round's messages and training, its evaluation, and what a checkpoint holds.

    The messages have the names that they have in Flower's strategies. `WholeRun` and `OneRound`
    call these methods; `RoundLoop` sets the attributes; `summary` (Flower's) logs the strategy's
    components.

    Attributes
    ----------
    states_in_checkpoint
        Whether `server_state` includes the states of clients, which live in this process; if not,
        the link keeps them beside the checkpoints.
    fixes_length
        Whether the class's own `agree`, which overriding ones must call, fixes the round's length.
    draw_seed
        Seed of random draws, but for the order of a client's examples; `seed`, unless the same
        clients are fitted again.
    stop_reason
        Why the run ends after this round, if it does: set by a subclass within a round, or by an
        observer that asks to stop.
    """

    states_in_checkpoint: ClassVar[bool] = False
    fixes_length: ClassVar[bool] = False

    aggregator: LowerAggregator
    audience: Audience
    evaluation: Evaluation
    evaluate_every: int
    fraction_train: float
    link: Link | None
    min_nodes: int
    num_rounds: int
    stop_reason: str
    records: RunRecords
    recorder: RunRecorder
    seed: int
    draw_seed: int
    _agreed: Agreement | None
    _known: KnownClients

    def agree(self, clients: Clients) -> int | None:
        """Leave out of a round who does not fit, and return the round's number of steps.

        No client is asked for more batches than that. A strategy whose rounds differ in length
        sets its `steps_per_round` here, before `super().agree(clients)`. None: the number is not
        known before. Then a client that accounts for noise has no epsilon any more once it did not
        finish a round, as nobody knows how many batches it has sent in that. A number that is not
        the length fixed by `super().agree(clients)` ends the run.
        """
        return None

    @abstractmethod
    def train_round(self, clients: Clients, server_round: int) -> int:
        """Train for one round and return the number of steps, at most what `agree` returned."""

    @abstractmethod
    def evaluate_round(self, clients: Clients) -> EvaluationResult | None:
        """Evaluate the model over the link, as set by `evaluation`."""

    @abstractmethod
    def server_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the server's state: tensors by name, and JSON values by name.

        An override adds to what `super().server_state()` returns.
        """

    @abstractmethod
    def restore_server(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `server_state`."""

    @property
    def facts_to_keep(self) -> dict[str, Any]:
        """What a checkpoint says of the run, which must be the same when it is resumed."""
        link = self.link
        return facts_of(self.seed, len(link.clients) if isinstance(link, LocalLink) else None)

    @property
    def keeps_ledger(self) -> bool:
        """Whether uploads are accounted for, even if a round is repeated."""
        return False

    def epsilons(self) -> Mapping[int, float]:
        """Return the epsilon that each client has spent; empty without a ledger."""
        return {}

    def epsilon(self) -> float | None:
        """Return the largest epsilon that a client has spent; None without a ledger."""
        return max(self.epsilons().values(), default=None)

    def check_clients(self, n: int) -> None:
        """Raise ValueError if a round cannot have `n` clients."""

    def prepare(self, clients: Sequence[Client] | None) -> None:
        """Get ready for clients of this process, or for clients behind a link (None)."""

    def warn_if_trained(self) -> None:
        """Log if what the server trains has learned already, though a run begins anew."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid | None
    ) -> Iterable[Message]:
        """Return the round's train messages: lower segment, configuration and ticket per client.

        Raises
        ------
        ValueError
            In round 1, if it has fewer nodes than the strategy asks for. Nodes that are lost later,
            or have no data, do not end a run that has begun, nor keep it from being resumed.
        """
        nodes = self._sample(grid, server_round, "train")
        if server_round == 1:
            self.check_clients(len(nodes))
        messages = self.aggregator.configure(
            server_round, arrays, config, grid, list(nodes.values())
        )
        ticket_of = self._tickets(server_round, server_round - 1)
        return with_tickets(messages, nodes, ticket_of, self._attempts)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the lower segments, if the strategy has an aggregator."""
        return self.aggregator.aggregate(server_round, list(replies))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid | None
    ) -> Iterable[Message]:
        """Return the evaluate messages for the round's sample of nodes."""
        nodes = self._sample(grid, server_round, "evaluate")
        content = RecordDict({"arrays": arrays, "config": config})
        messages = messages_to(
            list(nodes.values()), content, MessageType.EVALUATE, in_run=grid is not None
        )
        ticket_of = self._tickets(server_round, server_round)
        before = self.records.unfinished.of_evaluation
        return with_tickets(messages, nodes, ticket_of, lambda client: {"attempt": before(client)})

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None: the evaluation is computed over the link, not from replies."""
        return None

    def _attempts(self, client: int) -> Mapping[str, Any]:
        attempts = self.records.unfinished.of(client)
        known = [batches for batches in attempts if batches is not None]
        return {"attempt": len(attempts), "earlier": known}

    def _sample(self, grid: Grid | None, server_round: int, purpose: str) -> dict[int, int]:
        return self._known.participants.draw(
            self.open_link,
            grid,
            generator(self.draw_seed, f"sample-{purpose}", server_round),
            min_nodes=self.min_nodes,
            fraction=self.fraction_train,
        )

    def _tickets(self, server_round: int, state_round: int) -> Callable[..., Ticket]:
        """Return what makes each client's ticket, which lacks the client and its attempts."""
        averages = self.aggregator.averages
        return partial(
            Ticket,
            seed=self.seed,
            server_round=server_round,
            num_rounds=self.num_rounds,
            arrays="always" if averages else "initial",
            returns_arrays=averages,
            state_round=state_round,
            kept_rounds=self.recorder.checkpoints.rounds,
            run_config=self.recorder.start.resumed_config,
            draw_seed=None if self.draw_seed == self.seed else self.draw_seed,
        )

    @property
    def open_link(self) -> Link:
        """The link of the run; LinkError if neither `start` nor `fit` was called."""
        if self.link is None:
            raise LinkError(
                f"{type(self).__name__} has no link, as neither its start() nor its fit() was "
                "called; no strategy can wrap it: one that wraps others goes inside, as in "
                "aggregator=DifferentialPrivacyServerSideFixedClipping(FedAvg(), ...)"
            )
        return self.link

    def agree_on_steps(self, clients: Clients) -> int | None:
        """Return what `agree`, perhaps a user's own, says of the round's length, once checked."""
        self._agreed = None
        said = self.agree(clients)
        if self.fixes_length and self._agreed is None:
            raise RuntimeError(
                f"agree of {type(self).__name__} must call super().agree(clients), which leaves "
                "out who does not fit and fixes the round's length, and return its result"
            )
        return announced_steps(type(self), said, self._agreed)

    def heed_observers(self) -> None:
        """End the run after this round if an observer asks to."""
        self.stop_reason = self.stop_reason or self.audience.stop

    def require(self, clients: Clients) -> None:
        """Raise LinkError if fewer than `min_nodes` clients are left."""
        left = len(clients.nodes)
        if left < self.min_nodes:
            key = "min_nodes" if isinstance(self.open_link, LocalLink) else "min-nodes"
            number, named = self._known.intake.unusual
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
