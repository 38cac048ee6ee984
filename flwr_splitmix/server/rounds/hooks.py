"""What a round asks of its strategy, and what an author's own strategy may override."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from flwr_splitmix.clients import Client
from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.links import Clients, LocalLink
from flwr_splitmix.server.messages import messages_to, with_tickets
from flwr_splitmix.server.record.checkpointing import facts_of
from flwr_splitmix.server.rounds.setup import LoopSetup


class RoundHooks(LoopSetup):
    """Defines a round's messages and training, its evaluation, and what a checkpoint holds.

    The messages have the names that they have in Flower's strategies. `WholeRun` and `OneRound`
    call these methods; `summary` (Flower's) logs the strategy's components.

    Attributes
    ----------
    states_in_checkpoint
        Whether `server_state` includes the states of clients, which live in this process; if not,
        the link keeps them beside the checkpoints.

    See `LoopSetup` for the other attributes.
    """

    states_in_checkpoint: ClassVar[bool] = False

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
