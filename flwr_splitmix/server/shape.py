"""The interface of a shape: what the loop of rounds requires of a strategy."""

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
    """Defines a round of training, how the model is evaluated, and what a checkpoint holds.

    `RoundLoop` does everything else; `summary` (Flower's) logs the strategy's components.

    Attributes
    ----------
    states_in_checkpoint
        Whether `server_state` includes the states of clients, which live in this process; if not,
        the link keeps them beside the checkpoints.
    fixes_length
        Whether the shape's own `agree`, which overriding ones must call, fixes the round's length.
    """

    states_in_checkpoint: ClassVar[bool] = False
    fixes_length: ClassVar[bool] = False

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

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None: the evaluation is computed over the link, not from replies."""
        return None
