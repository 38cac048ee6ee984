"""Timing of a U-shaped strategy's steps, in turn with what they are compared to."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import nn

from flwr_splitmix import adamw
from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.events import Exchange
from flwr_splitmix.links import Link
from flwr_splitmix.observers import Observer
from flwr_splitmix.schedule import constant
from flwr_splitmix.strategies import USplitSL

WARM_UP = 3
"""Steps that are taken but not counted: the first lacks the backward of the one before it."""


class Stopwatch(Observer):
    """Times each step of one client from `encode` to `encode`, and between two something else."""

    def __init__(self, between: Callable[[], None]) -> None:
        self.between = between
        self._steps: list[float] = []
        self._others: list[float] = []
        self._began: float | None = None

    @property
    def pairs(self) -> tuple[list[float], list[float]]:
        """Milliseconds of each step after the warm-up, and of the call of `between` behind it."""
        return self._steps[WARM_UP:], self._others[WARM_UP:]

    def on_exchange(self, event: Exchange) -> None:
        """Close a step, and begin the next after what is between them."""
        if event.method != "encode" or event.direction != "down":
            return
        now = time.perf_counter()
        if self._began is not None:
            self._steps.append(1000 * (now - self._began))
            self.between()
            self._others.append(1000 * (time.perf_counter() - now))
        self._began = time.perf_counter()


def make_strategy(
    trunk: nn.Module, watch: Stopwatch, repeats: int, link: Link | None = None
) -> USplitSL:
    """Make the strategy whose round has so many steps to be counted.

    MixGuard's clients need no other one: at the server it is the plain U shape.
    """
    return USplitSL(
        trunk,
        optimizer=adamw(),
        schedule=constant,
        device="cpu",
        steps_per_round=repeats + WARM_UP,
        observers=[watch],
        link=link,
    )


def time_here(
    client: UShapeClient, trunk: nn.Module, between: Callable[[], None], repeats: int
) -> tuple[list[float], list[float]]:
    """Time steps over a LocalLink in turn with `between`, in this process."""
    watch = Stopwatch(between)
    make_strategy(trunk, watch, repeats).fit([client], num_rounds=1)
    return watch.pairs
