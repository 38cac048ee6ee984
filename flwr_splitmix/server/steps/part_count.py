"""The number of parts that a batch is cut into: as requested, or measured in the first steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Literal

from torch import nn

from flwr_splitmix.clients.split.batch_in_flight import MAX_PARTS
from flwr_splitmix.labels import TargetLoss, name_of
from flwr_splitmix.mixers import Mixer
from flwr_splitmix.segments.across_batch import needs_whole_batch
from flwr_splitmix.server.steps.pace import Pace
from flwr_splitmix.words import counted

log = logging.getLogger("flwr.splitmix")

PartsAsked = int | Literal["auto"]

PARTS_ALLOWED = f"it must be an integer from 1 to {MAX_PARTS}, or 'auto'"

PARTS_WHILE_MEASURING, MEASURED_STEPS = 2, 3
""""auto" measures so many steps with so many parts in each; the first step is not counted."""

MAX_CHOSEN_PARTS = 16
"""Most parts that "auto" chooses."""

MIN_PART_SECONDS = 0.02
""""auto" keeps each part of the step's longest stage at least this long, in seconds."""

TARGET_WAITING_FRACTION = 0.05
"""Target of "auto": the fraction of a step in which its longest stage waits for the others."""


class StepSeconds:
    """The timing of one step in parts.

    Parameters
    ----------
    parts
        The number of parts.

    Attributes
    ----------
    server
        Seconds of computation at the server.
    """

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.server = 0.0
        self._first: dict[int, float] = {}
        self._later: dict[int, float] = {}
        self._back: dict[int, float] = {}

    def uploaded(self, part: int, before: Mapping[int, float], after: Mapping[int, float]) -> None:
        """Record how long each client took for a part, from when it was free to start it.

        Parameters
        ----------
        before, after
            By client index, the seconds spent in its calls before and after the part.
        """
        for client, seconds in after.items():
            spent = seconds - before[client]
            totals = self._later if part else self._first
            totals[client] = totals.get(client, 0.0) + spent

    def delivered(self, before: Mapping[int, float], after: Mapping[int, float]) -> None:
        """Record how long it took to deliver a part's gradients; the last delivery counts."""
        self._back = {client: seconds - before[client] for client, seconds in after.items()}

    @property
    def trip(self) -> float:
        """Seconds from a call to the first byte of its reply, for the slowest client."""
        later = max(self.parts - 1, 1)
        return max(
            (max(s - self._later.get(c, 0.0) / later, 0.0) for c, s in self._first.items()),
            default=0.0,
        )

    @property
    def up(self) -> float:
        """Seconds to compute and upload a batch, for the slowest client."""
        later = max(self.parts - 1, 1)
        return max(self._later.values(), default=0.0) * self.parts / later

    @property
    def down(self) -> float:
        """Seconds to download the gradients of a batch and backpropagate them."""
        return self.parts * max(max(self._back.values(), default=0.0) - self.trip, 0.0)


class PartCount:
    """The number of parts of a run's batches.

    Parameters
    ----------
    asked
        Their number M, from 1 to 64; if M does not divide a batch, it is cut into fewer. Or "auto":
        as few as keep the longest stage of a step (up, server, down) busy, as measured in the
        first steps; 1 over a link on which nothing overlaps.

    Attributes
    ----------
    parts
        The current number of parts.

    Raises
    ------
    ValueError
        If `asked` is neither such a number nor "auto".
    """

    def __init__(self, asked: PartsAsked = 1) -> None:
        if not is_parts(asked):
            raise ValueError(f"micro_batches is {asked!r}; {PARTS_ALLOWED}")
        self.asked = asked
        self.parts = 1
        self._batch = 1
        self._chosen = 0
        self._timings: list[StepSeconds] = []

    def check(self, mixer: Mixer, server_update: str, upper: nn.Module, pace: Pace) -> None:
        """Raise ValueError if something needs whole batches; the message names it."""
        if self.asked == 1:
            return
        why = ""
        if server_update == "sequential":
            why = (
                "server_update is 'sequential', one step for each group; use "
                "micro_batches 1 with it, or server_update 'sum' or 'mean'"
            )
        elif layer := needs_whole_batch(upper):
            why = (
                f"the upper segment has {layer}, which needs a whole batch; use "
                "micro_batches 1 with it"
            )
        elif mixer.needs_whole_batch:
            why = f"{mixer} needs a whole batch; use micro_batches 1 with it"
        elif pace.skips:
            why = (
                "straggler is 'skip', which leaves out whole uploads; use "
                "micro_batches 1 with it, or straggler 'wait'"
            )
        if why:
            raise ValueError(f"micro_batches is {self.asked!r}, but {why}")

    def begin_round(self, batch: int, *, overlaps: bool) -> None:
        """Fix the number of parts for a round's batches.

        Parameters
        ----------
        batch
            Samples in each client's batch.
        overlaps
            Whether the link sends, receives and computes concurrently.
        """
        if self.asked != "auto":
            parts = largest_divisor(batch, self.asked)
            if parts != self.asked and batch != self._batch:
                log.warning(
                    "micro-batches is %d, which does not divide a batch of %d: it is cut into %d",
                    self.asked,
                    batch,
                    parts,
                )
        elif not overlaps:
            parts = 1
            if batch != self._batch:
                log.info("micro-batches: 1, as nothing overlaps over this link")
        else:
            parts = largest_divisor(batch, self._chosen or PARTS_WHILE_MEASURING)
        self.parts, self._batch = parts, batch

    @property
    def measures(self) -> bool:
        """Whether the next step is one of those that "auto" measures."""
        return self.asked == "auto" and not self._chosen and self.parts > 1

    def measured(self, seconds: StepSeconds) -> None:
        """Record one of the first steps; after the last of them, choose the number of parts."""
        self._timings.append(seconds)
        if len(self._timings) < MEASURED_STEPS:
            return
        measured = self._timings[1:]
        stages = {
            name: sum(getattr(timing, name) for timing in measured) / len(measured)
            for name in ("up", "server", "down")
        }
        trip = sum(timing.trip for timing in measured) / len(measured)
        self._chosen = self.parts = largest_divisor(self._batch, best_parts(stages, trip))
        log.info(
            "micro-batches: %s of %s: a batch takes %.3g s up, %.3g s at the server and %.3g s "
            "down, the way there and back %.3g s",
            counted(self.parts, "part"),
            counted(self._batch // self.parts, "sample"),
            *stages.values(),
            trip,
        )


def check_loss(loss: TargetLoss | None, asked: PartsAsked) -> None:
    """Raise ValueError if a loss needs a batch as a whole, by its `across_batch`."""
    layer = needs_whole_batch(loss) if isinstance(loss, nn.Module) else ""
    if asked != 1 and (layer or getattr(loss, "across_batch", False)):
        raise ValueError(
            f"micro_batches is {asked!r}, but loss {name_of(loss)} needs a whole batch; use "
            "micro_batches 1 with it"
        )


def is_parts(asked: object) -> bool:
    """Return whether a value is a valid number of parts, or "auto"."""
    return asked == "auto" or (type(asked) is int and 1 <= asked <= MAX_PARTS)


def best_parts(stages: Mapping[str, float], trip: float) -> int:
    """Return the fewest parts with which the longest stage of a step hardly waits.

    Between two steps that stage waits for one part of every other stage, and for the round trip,
    which more parts do not shorten.

    Parameters
    ----------
    stages
        Seconds of each stage for a whole batch.
    trip
        Seconds of the round trip.
    """
    longest = max(stages.values())
    others = sum(stages.values()) - longest
    if longest <= 0:
        return 1
    parts = math.ceil(others / (TARGET_WAITING_FRACTION * (longest + trip)))
    return max(1, min(parts, MAX_CHOSEN_PARTS, int(longest / MIN_PART_SECONDS)))


def largest_divisor(batch: int, most: int) -> int:
    """Return the largest divisor of a batch that is at most `most`."""
    return next(parts for parts in range(min(most, batch), 0, -1) if batch % parts == 0)
