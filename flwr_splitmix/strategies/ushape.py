"""The U shape: heads, tails, texts and labels with the clients, the trunk at the server."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Unpack

from flwr.serverapp import strategy as flower
from torch import Tensor, nn

from flwr_splitmix.clients import Client, UShapeClient
from flwr_splitmix.device import Precision
from flwr_splitmix.events import EvaluationResult, Messages, StepDone
from flwr_splitmix.hiding import Hiding
from flwr_splitmix.links import Clients, MixerLink
from flwr_splitmix.schedule import OptimizerFactory, Schedule
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.server.aggregation import fedavg
from flwr_splitmix.server.evaluation.ushape import evaluate_texts
from flwr_splitmix.server.intake.checks import plausible, read_each, reasons
from flwr_splitmix.server.intake.finite import all_finite
from flwr_splitmix.server.intake.ushape import (
    agree_on_batches,
    check_hiding,
    public_groups,
    read_gradients,
    read_messages,
)
from flwr_splitmix.server.options import RoundOptions, UShapeOptions, check_counts
from flwr_splitmix.server.rounds import RoundLoop
from flwr_splitmix.server.segments.trunk import TrunkSegment
from flwr_splitmix.words import counted

__all__ = ["UShapeOptions", "UShapeStrategy"]

log = logging.getLogger("flwr.splitmix")


class UShapeStrategy(RoundLoop):
    """Split learning with the loss at the client: two exchanges per step.

    `encode` brings the clients' messages to the trunk. `decode` brings the trunk's outputs to the
    clients, which answer with gradients. The gradients that the trunk's backward pass returns to
    the heads travel with the next `encode`. The clients decide what the messages contain.

    Parameters
    ----------
    trunk
        (hidden states (b, T, d), mask (b, T)) to hidden states (b, T, d).
    aggregator
        A Flower strategy that aggregates heads and tails once a round; None uses FedAvg if the
        class `averages`, and otherwise leaves them with their clients.
    optimizer, schedule
        For the trunk; by default AdamW (lr 1e-3, weight decay 0.05) with a cosine schedule. The
        trunk's gradient is the mean over the clients of a step.
    device, precision
        For the trunk; "auto" chooses, "placed" leaves a trunk where it is.
    width
        d of the hidden states; None uses the trunk's `width`, or else what most clients report.
    max_length
        Most tokens that the trunk accepts; None uses the trunk's `max_length`, or else no limit.
    steps_per_round
        By default the mean number of full batches of the round's clients, times
        `epochs_per_round`.
    min_nodes
        Fewest clients: a round with fewer ends with an error.
    **options
        See `SplitStrategy`.

    Attributes
    ----------
    averages
        Whether heads and tails are averaged by FedAvg if no aggregator is given.
    hiding
        How the strategy's clients hide their texts; the server only reads facts about the method.

    Source: MixGuard, section 2.2; split learning's U shape (Vepakomma et al., 2018).
    """

    averages: ClassVar[bool] = False
    hiding: ClassVar[type[Hiding]] = Hiding

    def __init__(
        self,
        trunk: nn.Module,
        *,
        aggregator: flower.Strategy | None = None,
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        device: str = "auto",
        precision: Precision = "auto",
        width: int | None = None,
        max_length: int | None = None,
        steps_per_round: int | None = None,
        epochs_per_round: int = 1,
        min_nodes: int = 1,
        **options: Unpack[RoundOptions],
    ) -> None:
        check_counts(
            steps_per_round=steps_per_round, epochs_per_round=epochs_per_round, min_nodes=min_nodes
        )
        if isinstance(options.get("link"), MixerLink):
            raise ValueError(
                f"{type(self).__name__} has the U shape, in which the server mixes nothing that a "
                "third party could mix for it: link-via is for CutMixSL and MixupSL; give it a "
                "StreamLink"
            )
        if aggregator is None and self.averages:
            aggregator = fedavg()
        super().__init__(aggregator=aggregator, min_nodes=min_nodes, **options)
        self.trunk = TrunkSegment(
            trunk, optimizer=optimizer, schedule=schedule, device=device, precision=precision
        )
        self.width = width or _whole_number(trunk, "width")
        self.max_length = max_length or _whole_number(trunk, "max_length")
        self.steps_per_round = steps_per_round
        self.epochs_per_round = epochs_per_round

    def prepare(self, clients: Sequence[Client] | None) -> None:
        """Warn of a trunk that has weights without an optimizer.

        Raises
        ------
        ValueError
            If clients in this process share weights with the trunk, or a hiding with each other.
        """
        self.trunk.warn_of_unknown_weights()
        self.trunk.check_apart(clients or ())
        _check_own_hidings(clients or ())

    @property
    def keeps_ledger(self) -> bool:
        """Whether the clients account for an epsilon."""
        return self.hiding.accounts

    def train_round(self, clients: Clients, server_round: int) -> int:
        """Train for one round and return the number of steps.

        Clients that must calibrate (MixGuard, Stage I) do so first, in parallel.
        """
        batches = self._agree(clients)
        self.require(clients)
        self._calibrate(clients)
        steps = self.steps_per_round or batches * self.epochs_per_round
        gradients: Mapping[int, list[Tensor]] = {}
        for number in range(steps):
            progress = server_round - 1 + number / steps
            replies = self._encode(clients, number, progress, gradients)
            messages = self._read(clients, replies)
            outputs = self._forward(
                clients, messages, derive_seed(self.draws, "trunk", server_round, number)
            )
            public = self._look(clients, {c: replies[c] for c in outputs if "public" in replies[c]})
            answers = clients.call(
                "decode",
                {
                    c: {"number": number, "outputs": outputs[c], "public": public.get(c)}
                    for c in outputs
                },
            )
            read = read_each(clients, answers, partial(_gradients_for, messages))
            self.require(clients)
            # A client that trains only its tail returns no gradients and needs none.
            returned = {client: own for client, own in read.items() if own}
            gradients = self.trunk.learn(returned, progress, self.num_rounds)
            for client in returned.keys() - gradients.keys():
                clients.fail(client, "its messages or gradients overflow in the trunk")
            self.require(clients)
            self.audience.on_step(
                StepDone(server_round, number, messages, gradients, returned=returned)
            )
        self._encode(clients, steps, server_round, gradients, last=True)
        return steps

    def _agree(self, clients: Clients) -> int:
        """Return the mean number of full batches; clients that do not fit are left out."""
        check_hiding(clients, self.hiding, type(self).__name__)
        return agree_on_batches(clients, self.width)

    def _forward(
        self, clients: Clients, messages: Mapping[int, Messages], seed: int
    ) -> dict[int, list[Tensor]]:
        """Pass messages through the trunk, leaving out clients whose outputs overflow."""
        outputs = self.trunk.forward(messages, seed)
        if all_finite([part for parts in outputs.values() for part in parts]):
            return outputs
        for client, parts in outputs.items():
            if not all_finite(parts):
                clients.fail(client, "its messages overflow in the trunk")
        self.require(clients)
        return self.trunk.forward(
            {c: m for c, m in messages.items() if c not in clients.failures}, seed
        )

    def _encode(
        self,
        clients: Clients,
        number: int,
        progress: float,
        gradients: Mapping[int, list[Tensor]],
        *,
        last: bool = False,
    ) -> dict[int, dict[str, Any]]:
        payloads = {
            client: {
                "number": number,
                "progress": progress,
                "gradient": gradients.get(client),
                "last": last,
            }
            for client in clients.alive
        }
        return clients.call("encode", payloads)

    def _read(
        self, clients: Clients, replies: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Messages]:
        """Read every client's messages; clients whose messages are invalid leave the round."""

        def read(client: int, reply: Mapping[str, Any]) -> Messages:
            said = clients.descriptions[client]
            return read_messages(
                reply,
                int(said["width"]),
                self.trunk.input_dtype,
                batch=int(said["batch-size"]),
                max_length=self.max_length,
            )

        messages = read_each(clients, replies, read)
        self.require(clients)
        return messages

    def _look(
        self, clients: Clients, replies: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, list[list[Tensor]]]:
        """Pass groups of public texts through the trunk, which does not train on them."""
        groups = read_each(clients, replies, lambda _, reply: public_groups(reply))
        outputs_of: dict[int, list[list[Tensor]]] = {client: [] for client in groups}
        for position in range(max(map(len, groups.values()), default=0)):
            part = {c: group[position] for c, group in groups.items() if position < len(group)}
            for client, outputs in self.trunk.look(self._read(clients, part)).items():
                outputs_of[client].append(outputs)
        return {c: outputs for c, outputs in outputs_of.items() if c not in clients.failures}

    def _calibrate(self, clients: Clients) -> None:
        said = {c: int(clients.descriptions[c]["calibration-steps"]) for c in clients.alive}
        # A client that has already calibrated reports 0; it must not cut a newcomer short.
        said = {c: number for c, number in said.items() if number}
        steps = dict(zip(said, plausible(list(said.values())), strict=True))
        if steps:
            most = counted(max(steps.values()), "step")
            log.info("clients calibrate for up to %s on public texts", most)
        for number in range(max(steps.values(), default=0)):
            due = {c: {"number": number} for c in clients.alive if number < steps.get(c, 0)}
            replies = clients.call("encode_public", due, phase="calibrate")
            looked = self._look(clients, replies)
            clients.call(
                "decode_public",
                {c: {"number": number, "public": outputs} for c, outputs in looked.items()},
                phase="calibrate",
            )
            self.require(clients)

    def evaluate_round(self, clients: Clients) -> EvaluationResult | None:
        """Have each client score its own model's outputs, over the link."""
        if self.evaluation == "none":
            return None
        self._agree(clients)
        result = evaluate_texts(
            clients, self.evaluation, lambda replies: self.trunk.look(self._read(clients, replies))
        )
        if clients.failures:
            log.warning("the evaluation went on without %s", reasons(clients))
        return result

    def server_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the trunk and its optimizer."""
        return self.trunk.state()

    def restore_server(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from `server_state`."""
        self.trunk.restore(tensors, meta)

    def summary(self) -> None:
        """Log the strategy's components."""
        aggregator = self.aggregator.strategy
        log.info(
            "%s: heads and tails %s, trunk on %s in %s",
            type(self).__name__,
            f"aggregated by {type(aggregator).__name__}" if aggregator else "stay with clients",
            self.trunk.device,
            str(self.trunk.dtype).removeprefix("torch."),
        )
        if self.recorder.run is not None:
            log.info("run %s: %s", self.recorder.run.id, self.recorder.run.path)
        if self.hiding.warning:
            log.warning(self.hiding.warning)


def _check_own_hidings(clients: Sequence[Client]) -> None:
    """Refuse clients that share a hiding, which keeps one client's secrets and ledger."""
    owners: dict[int, int] = {}
    for index, client in enumerate(clients):
        if not isinstance(client, UShapeClient):
            continue
        first = owners.setdefault(id(client.hiding), index)
        if first != index:
            kind = type(client.hiding).__name__
            raise ValueError(
                f"clients {first} and {index} share one hiding, a {kind}, which keeps the state of "
                f"one client: make one for each, hiding={kind}(...)"
            )


def _whole_number(trunk: nn.Module, name: str) -> int | None:
    value = getattr(trunk, name, None)
    return value if isinstance(value, int) else None


def _gradients_for(
    messages: Mapping[int, Messages], client: int, reply: Mapping[str, Any]
) -> list[Tensor]:
    return read_gradients(reply, messages[client])
