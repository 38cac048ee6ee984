"""Baselines: whole models, trained with the same data and budget as split models.

Optimizer, schedule, batches and seeds are those of split learning, as are the run's rows,
checkpoints and summary.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import Client, ClientError, Order, SplitClient, exchange
from flwr_splitmix.data.batches import TEST_BATCH
from flwr_splitmix.data.examples import ExampleSet, fetch
from flwr_splitmix.description import Description
from flwr_splitmix.device import Precision, autocast, pick_precision
from flwr_splitmix.events import EvaluationResult, RoundDone
from flwr_splitmix.labels import Tally, tally, target_loss, target_rows
from flwr_splitmix.links import Clients
from flwr_splitmix.observers.metrics import Metrics, row_of
from flwr_splitmix.server.aggregation import fedavg
from flwr_splitmix.server.options import RoundOptions
from flwr_splitmix.server.rounds import RoundLoop
from flwr_splitmix.storage import under


class WholeClient(SplitClient):
    """A client with the whole model.

    Parameters
    ----------
    model
        Map from inputs (b, ...) to logits (b, L).
    data
        Training examples (input, label).
    precision
        As for `TrainedUpper`.
    **options
        As for `SplitClient`.
    """

    def __init__(
        self,
        model: nn.Module,
        data: ExampleSet,
        *,
        precision: Precision = "auto",
        **options: Any,
    ) -> None:
        super().__init__(model, data, **options)
        self.dtype = pick_precision(precision, self.device)
        self._restored = False

    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """Begin a round; `arrays` replace the model's, unless None or after `restore`."""
        self._order = order
        # In a resumed run, the first arrays are the initial ones, or those just restored.
        if arrays is not None and not self._restored:
            complaint = "the server's lower segment does not fit this client's"
            self.lower.load(self.lower.fitted(arrays, complaint))
        self._restored = False
        return Description(num_examples=self.batches.examples).to_plain()

    @exchange(place=("number",))
    def train(self, *, number: int, steps: int) -> dict[str, Any]:
        """Take `steps` steps and return {"loss": mean}."""
        order = self.order
        total = torch.zeros((), device=self.device)
        self.segment.train()
        for step in range(steps):
            inputs, labels = self.batches.next_batch(order.seed, order.client)
            self.optimizer.zero_grad()
            loss = self.loss(self._logits(inputs), labels.to(self.device))
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step(order.server_round - 1 + step / steps, order.num_rounds)
            total += loss.detach()
        self.steps += steps
        return {"loss": float(total) / steps}

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of a batch: logits (b, L), labels int64 (b,) or (b, L)."""
        targets = target_rows(labels, logits.shape[1], logits.dtype)
        return target_loss(logits, targets, multi_label=labels.dim() == 2)

    @exchange(place=())
    def score(self) -> dict[str, Any]:
        """Score the model on the common test set.

        Returns
        -------
        "loss" and "correct", to be divided by "examples"; of several labels, "correct" is the mean
        over them. And "scores" with the other scores.
        """
        data = self.tests["benchmark"]
        if data is None:
            raise ClientError("this client has no benchmark test data")
        size = len(data)  # type: ignore[arg-type]
        total = Tally()
        self.segment.eval()
        with torch.inference_mode():
            for start in range(0, size, TEST_BATCH):
                inputs, labels = fetch(data, np.arange(start, min(start + TEST_BATCH, size)))
                total += tally(self._logits(inputs), labels.to(self.device))
        return {
            "loss": total.loss,
            "correct": total.right * size / total.predictions,
            "examples": size,
            "scores": total.scores,
        }

    def _logits(self, inputs: Tensor) -> Tensor:
        with autocast(self.device, self.dtype):
            logits: Tensor = self.segment(inputs.to(self.device))
        return logits.float()

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore what `state` returned, to continue in the next round."""
        super().restore(tensors, meta)
        self._restored = True


class WholeMetrics(Metrics):
    """Metrics of rounds without exchanged steps; `WholeModels` sets their loss and bytes.

    Attributes
    ----------
    loss
        Mean over the clients of their mean losses.
    round_bytes
        Bytes of the models in one direction.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loss: float | None = None
        self.round_bytes = 0

    def completed(self, event: RoundDone) -> RoundDone:
        """Return the event with the round's loss, bytes and row."""
        event = replace(
            event, loss=self.loss, uplink_bytes=self.round_bytes, downlink_bytes=self.round_bytes
        )
        return replace(event, row=row_of(event))


class WholeModels(RoundLoop):
    """Strategy whose rounds are one epoch of every client's own whole model.

    Clients must be in this process (`fit`). Their states are part of the server's checkpoints,
    which are written less often than clients' states: a model per client and round would fill a
    disk.

    Parameters
    ----------
    **options
        See `LoopSetup`; `evaluation` is "benchmark" or "none", and `metrics` is not taken, as
        the rows are made by a `WholeMetrics`.
    """

    averages: ClassVar[bool] = False
    states_in_checkpoint: ClassVar[bool] = True

    def __init__(self, *, min_nodes: int = 1, **options: Unpack[RoundOptions]) -> None:
        aggregator = fedavg() if self.averages else None
        self._metrics = WholeMetrics()
        if options.setdefault("metrics", self._metrics) is not self._metrics:
            raise TypeError(f"{type(self).__name__} makes its own rows: leave out metrics")
        super().__init__(aggregator=aggregator, min_nodes=min_nodes, **options)

    def prepare(self, clients: Sequence[Client] | None) -> None:
        """Check the clients, whose states are checkpointed.

        Raises
        ------
        TypeError
            If the clients are not `WholeClient`s in this process.
        """
        if clients is None or not all(isinstance(client, WholeClient) for client in clients):
            raise TypeError(f"{type(self).__name__} trains WholeClients of this process (fit)")

    @property
    def _clients(self) -> Sequence[WholeClient]:
        clients = self.run_state.clients or ()
        return [client for client in clients if isinstance(client, WholeClient)]

    def train_round(self, clients: Clients, server_round: int) -> int:
        """Train one epoch and return its steps: the mean number of full batches, at least 1."""
        batches = [self._clients[client].batches.per_epoch for client in clients.alive]
        steps = max(1, round(sum(batches) / len(batches)))
        orders = {client: {"number": 0, "steps": steps} for client in clients.alive}
        replies = clients.call("train", orders)
        self.require(clients)
        self._metrics.loss = statistics.fmean(reply["loss"] for reply in replies.values())
        if self.averages:
            state = self._clients[0].segment.state_dict()
            self._metrics.round_bytes = len(replies) * sum(t.nbytes for t in state.values())
        return steps

    def evaluate_round(self, clients: Clients) -> EvaluationResult | None:
        """Score every client's model, or the averaged one, on the common test set."""
        scored_clients = clients.alive[:1] if self.averages else clients.alive
        replies = clients.call("score", {client: {} for client in scored_clients}, phase="evaluate")
        if not replies:
            return None
        each = [reply["correct"] / reply["examples"] for reply in replies.values()]
        examples = sum(reply["examples"] for reply in replies.values())
        loss = sum(reply["loss"] for reply in replies.values()) / examples
        further = [reply.get("scores", {}) for reply in replies.values()]
        return EvaluationResult(
            "benchmark",
            statistics.fmean(each),
            loss,
            examples,
            statistics.pstdev(each),
            {name: statistics.fmean(scores[name] for scores in further) for name in further[0]},
        )

    def server_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the states of all clients: tensors and plain values."""
        tensors: dict[str, Tensor] = {}
        meta: dict[str, Any] = {}
        for index, client in enumerate(self._clients):
            client_tensors, plain = client.state()
            tensors |= {f"client.{index}.{name}": tensor for name, tensor in client_tensors.items()}
            meta[str(index)] = plain
        return tensors, {"clients": meta}

    def restore_server(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore what `server_state` returned."""
        for index, client in enumerate(self._clients):
            client.restore(under(f"client.{index}", tensors), meta["clients"][str(index)])

    def summary(self) -> None:
        """Log nothing, as the run's configuration has all."""


class Standalone(WholeModels):
    """Each client trains a whole model on its own data; accuracy is the mean over clients.

    Source: CutMixSL, table 1.
    """


class Unsplit(WholeModels):
    """One model is trained on the pooled data of all clients.

    With n times the batch size, the number of steps is that of n clients.
    """


class FedAvg(WholeModels):
    """Each client trains the whole model for an epoch; Flower's FedAvg averages every round."""

    averages = True


BASELINES: dict[str, type[WholeModels]] = {
    kind.__name__: kind for kind in (Standalone, Unsplit, FedAvg)
}
"""All baselines by name."""
