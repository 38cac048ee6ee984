"""Counts of what a round's plans gave to its clients, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from flwr_splitmix.mixers import Plan


class RoundTally:
    """Counts a round's steps, for the warnings at its end.

    Parameters
    ----------
    mixes
        Whether uploads are mixed at all; only then clients that are left over are counted.

    Attributes
    ----------
    steps, empty
        Number of steps, and of those in whose mixtures no patch arrived.
    teachable, taught
        Whether a share of any step learns, and whether any client has got a gradient.
    unmixed
        By client index, the number of uploads that were not mixed although the mixer mixes.
    """

    def __init__(self, *, mixes: bool) -> None:
        self.steps = self.empty = 0
        self.teachable = self.taught = False
        self.unmixed: Counter[int] = Counter()
        self._mixes = mixes
        self._members: set[int] = set()
        self._planned: set[int] = set()

    def add(self, members: Collection[int], plan: Plan) -> None:
        """Count a step's plan, which was drawn for these clients."""
        self.steps += 1
        self._members.update(members)
        self._planned |= plan.clients
        if self._mixes:
            self.unmixed.update(plan.unmixed)

    def add_empty(self) -> None:
        """Count the step whose plan was added last as one in whose mixtures no patch arrived."""
        self.empty += 1

    def add_gradients(self, plan: Plan, gradients: Mapping[int, Sequence[Tensor | None]]) -> None:
        """Note whether shares of a step's plan learn, and whether any client gets a gradient."""
        self.teachable = self.teachable or any(member.share.learns for member in plan.members)
        parts = (part for client_parts in gradients.values() for part in client_parts)
        self.taught = self.taught or any(part is not None for part in parts)

    @property
    def left_out(self) -> set[int]:
        """Clients that plans were drawn for, but that are in none of the plans."""
        return self._members - self._planned
