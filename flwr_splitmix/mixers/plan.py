"""The plan of one step: mixing groups, and each client's share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self, TypeVar

from flwr_splitmix.mixers.share import Plain, Share

T = TypeVar("T")


@dataclass(frozen=True)
class SmashedShape:
    """Shape of every client's smashed data in a step: (batch, prefix + patches, width).

    Parameters
    ----------
    grid
        (rows, columns) of the patches, if they form a grid.
    classes
        Number L of classes, for shares that send soft labels.
    """

    batch: int
    patches: int
    width: int
    prefix: int = 0
    grid: tuple[int, int] | None = None
    classes: int = 0

    @property
    def size(self) -> tuple[int, int, int]:
        """The shape of the tensor."""
        return (self.batch, self.prefix + self.patches, self.width)

    def rows_and_columns(self) -> tuple[int, int]:
        """Return the grid of patches; if none is given, a square number of patches forms a square.

        Raises
        ------
        ValueError
            If the patches form no known grid.
        """
        side = math.isqrt(self.patches)
        if self.grid is None and side * side != self.patches:
            raise ValueError(
                f"{self.patches} patches form no square, and neither segment's geometry gives a "
                "grid of them: give the lower segment geometry = Geometry(patches, width, "
                "grid=(rows, columns)); methods that mix inputs also take grid=(rows, columns)"
            )
        return self.grid or (side, side)


@dataclass(frozen=True)
class Member:
    """A client's place in a mixing group."""

    client: int
    share: Share


@dataclass(frozen=True)
class Group:
    """Clients whose smashed data become one mixture."""

    members: tuple[Member, ...]


@dataclass(frozen=True)
class Plan:
    """One step's plan: passes -> groups -> members.

    There is one pass, except for the k-times form of CutMix, which has k.
    """

    shape: SmashedShape
    passes: tuple[tuple[Group, ...], ...]

    def for_node(self, client: int) -> list[dict[str, Plain] | None]:
        """Return what is sent to a client: its share of each pass (None if it has none)."""
        shares = self.shares(client)
        return [None if share is None else share.to_wire() for share in shares]

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of all passes, one pass after the other."""
        return tuple(group for groups in self.passes for group in groups)

    @property
    def members(self) -> tuple[Member, ...]:
        """The members of all groups of all passes; a client is one in each pass that it is in."""
        return tuple(member for group in self.groups for member in group.members)

    @property
    def kinds(self) -> set[type[Share]]:
        """The kinds of shares in it, including those that others wrap."""
        kinds: set[type[Share]] = set()
        for member in self.members:
            share: Share | None = member.share
            while share is not None:
                kinds.add(type(share))
                inner = getattr(share, "inner", None)
                share = inner if isinstance(inner, Share) else None
        return kinds

    def shares(self, client: int) -> list[Share | None]:
        """Return one client's share in each pass."""
        return list(self._shares_of.get(client, [None] * len(self.passes)))

    @cached_property
    def _shares_of(self) -> dict[int, list[Share | None]]:
        """Every client's share in each pass: each is asked for, so a search would be quadratic."""
        shares: dict[int, list[Share | None]] = {}
        for index, groups in enumerate(self.passes):
            for member in (member for group in groups for member in group.members):
                client_shares = shares.setdefault(member.client, [None] * len(self.passes))
                if client_shares[index] is not None:
                    raise ValueError(
                        f"client {member.client} has two shares in one pass of the plan, but "
                        "uploads once: put it in one group, or make a further pass"
                    )
                client_shares[index] = member.share
        return shares

    @property
    def sums(self) -> bool:
        """Whether a mixture holds numbers that are sums of several members' numbers."""
        return any(member.share.summed for member in self.members)

    def only(self, group: int) -> Self:
        """Return the plan of one group of the first pass alone."""
        return replace(self, passes=((self.passes[0][group],),))

    def part(self, first: int, samples: int) -> Self:
        """Return the plan for `samples` samples of every client, from sample `first` on."""
        passes = tuple(
            tuple(
                Group(tuple(replace(m, share=m.share.part(first)) for m in group.members))
                for group in groups
            )
            for groups in self.passes
        )
        return replace(self, shape=replace(self.shape, batch=samples), passes=passes)

    @property
    def clients(self) -> frozenset[int]:
        """Clients that have a share in any pass."""
        return frozenset(self._shares_of)

    @property
    def unmixed(self) -> tuple[int, ...]:
        """Clients that are alone in a group and whose upload is unmixed: nothing protects them."""
        return tuple(
            group.members[0].client
            for group in self.groups
            if len(group.members) == 1 and not group.members[0].share.mixed
        )


def each_alone(shape: SmashedShape, shares: Iterable[tuple[int, Share]]) -> Plan:
    """Return a plan with one pass, in which every client is a group of its own."""
    return Plan(shape, (tuple(Group((Member(*pair),)) for pair in shares),))


def grow(value: Any, kind: type[T], **more: Any) -> T:
    """Return a dataclass value as an instance of a subclass of its class, with further fields."""
    return kind(**{f.name: getattr(value, f.name) for f in fields(value)}, **more)
