"""The base class of mixers that draw random groups of k clients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from flwr_splitmix.mixers.facts import Regroup as Regroup
from flwr_splitmix.mixers.full_share import FullShare
from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.plan import Group, Member, Plan, SmashedShape
from flwr_splitmix.values import check_choice, whole_number
from flwr_splitmix.words import allowed_range, counted

Leftover = Literal["send", "skip"]

WHOLE_OR_NOT = "mixes nothing: a sample is sent whole or not at all"
"""The effect of a mixer of whole patches on samples of one patch; see `Mixer.without_effect`."""


class GroupMixer(Mixer):
    """Mixes groups of `k` clients; a subclass defines mixing within a group in `mix`.

    Parameters
    ----------
    k
        Clients per mixing group. Of `n` clients, `n mod k` are left over: two or more form a
        smaller group; `leftover` decides what a single one does.
    regroup
        Whether clients are regrouped every "step" or every "epoch".
    leftover
        The action of a client that is left over alone. "send": it sends all its smashed data with
        its hard label, which is plain split learning and protects nothing, as in the paper. "skip":
        it sends nothing as long as groups stay as they are, and learns nothing from these steps.

    Raises
    ------
    ValueError
        If `k` is not a whole number, or < 2, or another option is not one of those allowed.

    Source: CutMixSL, algorithm 2 and "communication efficiency".
    """

    min_members = 2

    def __init__(
        self, k: int = 2, *, regroup: Regroup = "step", leftover: Leftover = "send"
    ) -> None:
        if whole_number("k", k) < 2:
            raise ValueError(f"k is {k}; a mixing group needs at least 2 clients")
        check_choice("regroup", regroup, get_args(Regroup))
        check_choice("leftover", leftover, get_args(Leftover))
        self.k = k
        self.regroup = regroup
        self.leftover = leftover
        self._classes: Mapping[int, int] = {}

    def group_within(self, classes: Mapping[int, int]) -> None:
        """From now on, group clients of the same class where possible."""
        self._classes = dict(classes)

    def leaves_one(self, n: int) -> bool:
        """Return whether one of `n` clients is left over alone."""
        return n % self.k == 1

    def asked(self, n: int) -> int:
        """Return how many of `n` clients send something in a step."""
        return n - (self.leftover == "skip" and self.leaves_one(n))

    def check_clients(self, n: int) -> None:
        """Raise ValueError if a group is larger than the number of clients."""
        if self.k > n:
            takes = "takes" if n == 1 else "take"
            remedy = allowed_range(2, n) if n > 1 else "a group needs at least 2"
            raise ValueError(
                f"k is {self.k}, but only {counted(n, 'client')} {takes} part in a round; {remedy}"
            )

    def groups(
        self,
        members: Sequence[int],
        rng: np.random.Generator,
        order_rng: np.random.Generator | None,
    ) -> list[list[int]]:
        """Return random groups of `k` clients, and a smaller one of the rest that send."""
        order = [int(c) for c in (order_rng or rng).permutation(list(members))]
        senders = order[: self.asked(len(order))]
        if self._classes:
            senders.sort(key=lambda client: self._classes.get(client, 0))
        return [senders[i : i + self.k] for i in range(0, len(senders), self.k)]

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Draw groups, then the shares within each."""
        drawn = (self.group(c, shape, rng) for c in self.groups(members, rng, order_rng))
        return Plan(shape, (tuple(drawn),))

    def group(self, clients: Sequence[int], shape: SmashedShape, rng: np.random.Generator) -> Group:
        """Return one group's members with their shares; a client alone sends everything."""
        if len(clients) == 1:
            return Group((Member(clients[0], FullShare()),))
        return Group(tuple(self.mix(clients, shape, rng)))

    @abstractmethod
    def mix(
        self, clients: Sequence[int], shape: SmashedShape, rng: np.random.Generator
    ) -> Sequence[Member]:
        """Draw the shares of two or more clients."""
