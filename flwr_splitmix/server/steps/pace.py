"""Pacing of clients of unequal speed: those a step waits for, and those mixed together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from flwr_splitmix.links.link import Clients, Patience
from flwr_splitmix.mixers import Mixer
from flwr_splitmix.mixers.grouping import GroupMixer
from flwr_splitmix.mixers.wrapper import innermost
from flwr_splitmix.values import check_choice

Straggler = Literal["wait", "skip"]
GroupOrder = Literal["random", "arrival"]
Grouping = Literal["random", "speed"]

SAME_SPEED = 1.5
"""Clients of one class take at most this many times as long as its fastest client."""


@dataclass(frozen=True)
class Pace:
    """The treatment of clients of unequal speed by a strategy of the L shape.

    With any value but the defaults, results depend on the clients' speed and are not reproducible.

    Parameters
    ----------
    straggler
        "wait" for every client in every step; or "skip" a step's late uploads: their clients stay
        in the round and take part again once they have answered.
    straggler_factor
        A client is late if it takes longer than this many times the median of a step's clients.
    group_order
        Order of sequential updates: "random", or "arrival" of the groups' uploads, with each
        group's gradients sent at once.
    grouping
        How groups are formed: at "random", or from clients of similar "speed" in earlier rounds,
        at random among those.

    Raises
    ------
    ValueError
        If a value is not allowed.
    """

    straggler: Straggler = "wait"
    straggler_factor: float = 2.0
    group_order: GroupOrder = "random"
    grouping: Grouping = "random"

    def __post_init__(self) -> None:
        check_choice("straggler", self.straggler, get_args(Straggler))
        check_choice("group_order", self.group_order, get_args(GroupOrder))
        check_choice("grouping", self.grouping, get_args(Grouping))
        if not (math.isfinite(self.straggler_factor) and self.straggler_factor > 1):
            raise ValueError(
                f"straggler_factor is {self.straggler_factor!r}; it must be above 1, e.g. 2.0: "
                "half of all clients take longer than the median"
            )

    def check(self, mixer: Mixer, server_update: str) -> None:
        """Raise ValueError if the mixer or the server update does not allow this pace."""
        if self.group_order == "arrival" and server_update != "sequential":
            raise ValueError(
                f"group_order is 'arrival', but server_update is {server_update!r}, one joint step "
                "on all groups; use group_order 'random' with it, or server_update "
                "'sequential'"
            )
        if self.group_order == "arrival" and mixer.k_times:
            raise ValueError(
                "group_order is 'arrival', but with k_times a client is in several groups of a "
                "step; use group_order 'random' with it"
            )
        inner = innermost(mixer)
        if self.grouping == "speed" and not isinstance(inner, GroupMixer):
            raise ValueError(
                f"grouping is 'speed', but {inner} forms no groups of clients; use "
                "grouping 'random' with it"
            )

    @property
    def skips(self) -> bool:
        """Whether a step continues without late uploads."""
        return self.straggler == "skip"

    @property
    def on_arrival(self) -> bool:
        """Whether groups are processed as they arrive."""
        return self.group_order == "arrival"

    @property
    def notices_arrival(self) -> bool:
        """Whether it matters when each upload arrives."""
        return self.skips or self.on_arrival

    def patience(self, min_nodes: int) -> Patience | None:
        """Return how long a step waits for slower clients; None for no limit."""
        return Patience(self.straggler_factor, min_nodes) if self.skips else None

    def members(self, clients: Clients, willing: Iterable[int], least: int) -> list[int]:
        """Return the clients of the next step, without those still busy with an earlier one.

        If fewer than `least` are left, all clients take part, and the step waits for them.
        """
        candidates = list(willing)
        busy = clients.busy if self.skips else frozenset[int]()
        free = [client for client in candidates if client not in busy]
        if len(free) >= least:
            return free
        alive = set(clients.alive)
        return [client for client in candidates if client in alive]

    def classes(self, seconds: Mapping[int, float]) -> dict[int, int]:
        """Return each client's speed class, 0 for the fastest; {} if groups are random.

        Parameters
        ----------
        seconds
            By client index, seconds per step in earlier rounds.
        """
        if self.grouping == "random":
            return {}
        classes: dict[int, int] = {}
        number, fastest = -1, -math.inf
        for client in sorted(seconds, key=lambda c: (seconds[c], c)):
            if number < 0 or seconds[client] > SAME_SPEED * fastest:
                number, fastest = number + 1, seconds[client]
            classes[client] = number
        return classes
