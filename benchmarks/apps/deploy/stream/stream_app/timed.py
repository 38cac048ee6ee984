"""A link and strategies that time themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from flwr_splitmix import StreamLink
from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.links import Clients
from flwr_splitmix.links.link import Observe
from flwr_splitmix.server.rounds import RoundLoop
from flwr_splitmix.strategies import PSL

from .bare_echo import BareEcho

WARM_UP = 3
"""Exchanges of a round that are made but not counted; the first has no backward."""


class TimedLink(StreamLink):
    """A stream link that notes what a round takes outside of its steps.

    Attributes
    ----------
    attach_s
        Seconds of each round from its messages to the attach of the last node.
    finish_s
        Seconds of each round from its last step to the last reply, which is ready to aggregate.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.attach_s: list[float] = []
        self.finish_s: list[float] = []

    @contextmanager
    def round(
        self, grid: Grid | None, messages: Sequence[Message], observe: Observe | None = None
    ) -> Iterator[Clients]:
        """Run a round."""
        began = time.perf_counter()
        with super().round(grid, messages, observe) as clients:
            self.attach_s.append(time.perf_counter() - began)
            yield clients
            stepped = time.perf_counter()
        self.finish_s.append(time.perf_counter() - stepped)


class TimedPSL(PSL):
    """PSL that notes the milliseconds of each exchange, and from one exchange to the next.

    Attributes
    ----------
    exchange_ms, step_ms
        By round; a step is an exchange and what the server computes until the next.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.exchange_ms: list[list[float]] = []
        self.step_ms: list[list[float]] = []

    def train_round(self, clients: Clients, server_round: int) -> int:
        """Train; `Clients.call` is wrapped, since it keeps seconds by round only."""
        call = clients.call
        times: list[tuple[float, float]] = []

        def timed(
            method: str, payloads: Mapping[int, Mapping[str, Any]]
        ) -> dict[int, dict[str, Any]]:
            began = time.perf_counter()
            replies = call(method, payloads)
            times.append((began, time.perf_counter()))
            return replies

        clients.call = timed  # type: ignore[method-assign, assignment]
        steps = super().train_round(clients, server_round)
        begins = [began for began, _ in times]
        self.exchange_ms.append([1000 * (ended - began) for began, ended in times])
        self.step_ms.append(
            [1000 * (after - before) for before, after in pairwise(begins)][WARM_UP:]
        )
        return steps


class Payloads(RoundLoop):
    """Sends tensors there and back, over the link and over bare gRPC in turn.

    Parameters
    ----------
    megabytes
        Of a payload.
    bare
        The other way, which the clients are told to dial.
    ca
        PEM of the authority that they must trust for it.

    Attributes
    ----------
    stream_ms, echo_ms
        By number of nodes at once, milliseconds there and back.
    """

    def __init__(
        self, megabytes: float, repeats: int, bare: BareEcho, ca: str, nodes: int, **options: Any
    ) -> None:
        super().__init__(aggregator=None, min_nodes=nodes, **options)
        self.value = torch.randn(1, int(megabytes * 250_000))
        self.repeats = repeats
        self.bare = bare
        self.ca = ca
        self.stream_ms: dict[int, list[float]] = {1: [], nodes: []}
        self.echo_ms: dict[int, list[float]] = {1: [], nodes: []}

    def train_round(self, clients: Clients, server_round: int) -> int:
        """Measure; what is compared takes turns, so that drift of the machine cancels."""
        clients.call(
            "dial", {c: {"address": self.bare.address, "ca": self.ca} for c in clients.alive}
        )
        data = self.value.numpy().tobytes()
        for number in range(WARM_UP + self.repeats):
            for nodes in self.stream_ms:
                chosen = clients.alive[:nodes]
                began = time.perf_counter()
                clients.call("echo", {c: {"value": self.value} for c in chosen})
                between = time.perf_counter()
                self.bare.echo(data, chosen)
                ended = time.perf_counter()
                self.require(clients)
                if number >= WARM_UP:
                    self.stream_ms[nodes].append(1000 * (between - began))
                    self.echo_ms[nodes].append(1000 * (ended - between))
        return self.repeats

    def evaluate_round(self, clients: Clients) -> EvaluationResult | None:
        """Return None: there is no model."""
        return None

    def server_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return nothing: there is no model."""
        return {}, {}

    def restore_server(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Do nothing."""

    def summary(self) -> None:
        """Say nothing: the figures do."""
