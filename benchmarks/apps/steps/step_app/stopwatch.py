"""Timing of a strategy's steps, one by one, in turn with what they are compared to."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import nn

from flwr_splitmix.events import RoundDone, StepDone
from flwr_splitmix.links import Clients
from flwr_splitmix.links.ray.link import RayClients
from flwr_splitmix.observers import Observer
from flwr_splitmix.strategies import PSL

WARM_UP = 2
"""Steps that are taken but not counted."""


class Stopwatch(Observer):
    """Times each step from the end of the last, and between two steps something else.

    Parameters
    ----------
    between
        Called after every `every`-th step.
    """

    def __init__(self, between: Callable[[], None] | None = None, every: int = 1) -> None:
        self.between = between
        self.every = every
        self._steps: list[float] = []
        self._others: list[float] = []
        self._began: float | None = None

    @property
    def steps(self) -> list[float]:
        """Milliseconds of each step after the warm-up."""
        return self._steps[WARM_UP:]

    @property
    def others(self) -> list[float]:
        """Milliseconds of each call of `between`; with `every` = 1, in pairs with the steps."""
        return self._others[WARM_UP:] if self.every == 1 else self._others[1:]

    def on_step(self, event: StepDone) -> None:
        """Close this step; the first of a round lacks the backward of the one before it."""
        now = time.perf_counter()
        if self._began is not None:
            self._steps.append(1000 * (now - self._began))
        if self.between is not None and event.number % self.every == 0:
            began = time.perf_counter()
            self.between()
            if self._began is not None or self.every > 1:
                self._others.append(1000 * (time.perf_counter() - began))
        self._began = time.perf_counter()

    def on_round(self, event: RoundDone) -> None:
        """Stop the watch."""
        self._began = None


class WatchedPSL(PSL):
    """PSL that notes how long the clients themselves computed in each step."""

    def __init__(self, upper: nn.Module, watch: Stopwatch, **options: object) -> None:
        super().__init__(upper, **options, observers=[watch])  # type: ignore[arg-type]
        self.watch = watch
        self.clients_ms: list[float] = []
        """For each exchange, the busiest host's: a host's clients run one after the other."""

    def train_round(self, clients: Clients, server_round: int) -> int:
        """Train; `Clients.call` is wrapped, since seconds are kept by round only."""
        call = clients.call

        def timed(*arguments: object) -> object:
            before = dict(clients.seconds)
            replies = call(*arguments)  # type: ignore[arg-type]
            by_host: dict[object, float] = {}
            for client, seconds in clients.seconds.items():
                host = clients.handle_of[client] if isinstance(clients, RayClients) else None
                by_host[host] = by_host.get(host, 0.0) + 1000 * (seconds - before[client])
            self.clients_ms.append(max(by_host.values()))
            return replies

        clients.call = timed  # type: ignore[method-assign, assignment]
        return super().train_round(clients, server_round)

    @property
    def overhead_ms(self) -> list[float]:
        """Each step's milliseconds less those that the busiest host computed in it."""
        computed = self.clients_ms[1 + WARM_UP : -1]  # without the first step, and the round's end
        return [s - c for s, c in zip(self.watch.steps, computed, strict=True)]
