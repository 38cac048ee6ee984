"""The interface of a shape: what the loop of rounds asks of a strategy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from flwr.app import Message, MetricRecord
from flwr.serverapp import strategy as flower
from torch import Tensor

from flwr_splitmix.clients import Client
from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.links import Clients


class Shape(flower.Strategy):
    """What a round of training is, how the model is measured, and what a checkpoint holds of it.

    `RoundLoop` does all the rest; `summary` (Flower's) logs what the strategy is made of.

    Attributes
    ----------
    states_in_checkpoint
        Whether `server_state` has the clients' states too, which live in this process; else the
        link keeps them beside the checkpoints.
    """

    states_in_checkpoint: ClassVar[bool] = False

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

    def epsilon(self) -> float | None:
        """Return what the client that spent most has spent; None without a ledger."""
        return max(self.epsilons().values(), default=None)

    def unfinished(self, client: int) -> int:
        """Return how often a client has begun a round since the last one that it finished."""
        return 0

    def check_clients(self, n: int) -> None:
        """Raise ValueError if a round of `n` clients makes no sense."""

    def prepare(self, clients: Sequence[Client] | None) -> None:
        """Get ready for clients of this process, or for clients behind a link (None)."""

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None: the server itself computes what clients' smashed data are worth."""
        return None
