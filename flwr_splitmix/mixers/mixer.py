"""What a mixer is: a plan of who is mixed with whom, the mixture, and the way back."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.mixers.share import Plain, Share

Cover = Literal["partition", "weighted", "partial"]

LEAST_RATIO = 1e-6
"""Of what came of a group: below, dividing by it would leave rounding errors or NaN."""


@dataclass(frozen=True)
class SmashedShape:
    """Shape of every client's smashed data in a step: (batch, prefix + patches, width).

    Parameters
    ----------
    grid
        (rows, columns) of the patches, where they form a grid.
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
        """Return the grid of the patches; without one, a square number of them is a square.

        Raises
        ------
        ValueError
            If the patches form no known grid.
        """
        side = math.isqrt(self.patches)
        if self.grid is None and side * side != self.patches:
            raise ValueError(
                f"{self.patches} patches form no square, and the upper segment's geometry gives "
                "no grid (rows, columns) of them"
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
        """Return all that one client gets: its share of each pass (None where it has none)."""
        shares = self.shares(client)
        return [None if share is None else share.to_wire() for share in shares]

    def shares(self, client: int) -> list[Share | None]:
        """Return one client's share in each pass."""
        return [
            next((m.share for group in groups for m in group.members if m.client == client), None)
            for groups in self.passes
        ]

    @property
    def clients(self) -> frozenset[int]:
        """Clients that have a share in any pass."""
        return frozenset(
            member.client for groups in self.passes for group in groups for member in group.members
        )

    @property
    def unmixed(self) -> tuple[int, ...]:
        """Clients that are alone in a group and mixed nothing before: nothing protects them."""
        return tuple(
            group.members[0].client
            for groups in self.passes
            for group in groups
            if len(group.members) == 1 and not group.members[0].share.mixed
        )


@dataclass(frozen=True)
class Upload:
    """What one client sent in a step.

    Parameters
    ----------
    smashed
        One tensor (b, a, d) for each pass, None where the client has no share in it.
    labels
        int64 (b,); or soft labels, weighted by the client: floats (b, L) for each pass, None where
        the client has no share in it.
    """

    smashed: Sequence[Tensor | None]
    labels: Tensor | Sequence[Tensor | None]

    def targets(self, index: int, lam: float, num_classes: int, like: Tensor) -> Tensor:
        """Return this client's part of a group's targets in one pass: (b, L), weighted.

        Parameters
        ----------
        like
            A tensor of the dtype and on the device that are wanted.
        """
        if isinstance(self.labels, Tensor):
            hard = F.one_hot(self.labels.to(like.device), num_classes)
            return lam * hard.to(like.dtype)
        soft = self.labels[index]
        assert soft is not None, "an upload that passed the check has every pass"
        return soft.to(like)


@dataclass(frozen=True)
class Source:
    """What a group of a mixture was made of.

    Parameters
    ----------
    index
        The pass it belongs to.
    members
        Those whose uploads came.
    ratio
        The sum of their mixing ratios: 1 when all came.
    """

    index: int
    members: tuple[Member, ...]
    ratio: float


@dataclass(frozen=True)
class Mixed:
    """What the upper segment learns from in a step.

    Parameters
    ----------
    smashed
        (groups * b, prefix + N, d), group after group.
    targets
        Soft labels (groups * b, L) that sum to 1 (under label noise, nearly).
    sources
        Where each group of it came from, in order.
    """

    smashed: Tensor
    targets: Tensor
    sources: tuple[Source, ...]


class EmptyMixtureError(ValueError):
    """Not one patch of a plan came; there is nothing to learn from."""


class Mixer(ABC):
    """Decides what happens to smashed data between the clients and the upper segment.

    A new mixer overrides `plan`; one whose clients upload something new also brings a `Share`.

    Attributes
    ----------
    shares
        The kinds of shares that its plans contain besides the built-in ones; clients must know
        them.
    cover
        What the shares of a group do to a patch: "partition", exactly one member keeps it as it
        is; "weighted", all members contribute, by their mixing ratios; "partial", at most one
        keeps it, and it may be nobody's.
    positions
        Where the patches' position embeddings must be added: in either segment (None), or in the
        upper one ("upper"), because the patches are moved in between.
    raw_inputs_cross
        Whether clients see each other's raw inputs: for comparison within one process only.
    takes_noise
        Whether `Noisy` may add noise to what clients send.
    min_members
        The fewest clients with which it does what it promises.
    regroup
        Whether clients are put into new groups every "step" or every "epoch".
    """

    shares: ClassVar[tuple[type[Share], ...]] = ()
    cover: Cover = "partition"
    positions: Literal["upper"] | None = None
    raw_inputs_cross: bool = False
    takes_noise: bool = True
    min_members: int = 1
    regroup: Literal["step", "epoch"] = "step"

    def __str__(self) -> str:
        return type(self).__name__

    def check_clients(self, n: int) -> None:
        """Raise ValueError if this mixer cannot work with `n` clients in a round."""
        if n < self.min_members:
            raise ValueError(
                f"{type(self).__name__} needs at least {self.min_members} clients in a round, "
                f"here are {n}"
            )

    @abstractmethod
    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Draw a step's groups, mixing ratios and masks.

        Parameters
        ----------
        members
            Client indices that take part, sorted.
        rng
            Generator of this step.
        order_rng
            Generator of what is drawn once an epoch when `regroup` is "epoch"; None uses `rng`.
        """

    def merge(
        self,
        uploads: Mapping[int, Upload],
        plan: Plan,
        *,
        num_classes: int,
        device: torch.device | None = None,
    ) -> Mixed:
        """Mix the uploads that came.

        A member that is missing leaves zeros at its patches, and the target is divided by the sum
        of the ratios that came. A group of which no patch came is left out.

        Parameters
        ----------
        uploads
            By client index; may lack clients of the plan.
        num_classes
            Number L of classes.
        device
            Where the mixture is made; None is where the uploads are.

        Raises
        ------
        EmptyMixtureError
            If no patch came at all.
        """
        sources = self._sources(uploads, plan)
        if not sources:
            raise EmptyMixtureError(
                "there is nothing to mix: no client of the plan uploaded any patch"
            )
        first = next(s for upload in uploads.values() for s in upload.smashed if s is not None)
        batch, tokens, width = plan.shape.size
        mixed = torch.zeros(
            (len(sources) * batch, tokens, width), dtype=first.dtype, device=device or first.device
        )
        targets = torch.zeros((len(mixed), num_classes), dtype=first.dtype, device=mixed.device)
        for row, source in enumerate(sources):
            here = slice(row * batch, (row + 1) * batch)
            for member in source.members:
                upload = uploads[member.client]
                smashed = upload.smashed[source.index]
                assert smashed is not None, "an upload that passed the check has every pass"
                member.share.place(mixed[here], smashed.to(mixed.device))
                targets[here] += upload.targets(
                    source.index, member.share.lam, num_classes, targets
                )
            if source.ratio != 1:
                targets[here] /= source.ratio
                self.renormalise(mixed[here], source.ratio, plan.shape)
        return Mixed(mixed, targets, tuple(sources))

    def _sources(self, uploads: Mapping[int, Upload], plan: Plan) -> list[Source]:
        sources = []
        for index, groups in enumerate(plan.passes):
            for group in groups:
                came = tuple(m for m in group.members if m.client in uploads)
                if len(came) == len(group.members):
                    sources.append(Source(index, came, 1.0))
                elif (ratio := sum(m.share.lam for m in came)) >= LEAST_RATIO:
                    sources.append(Source(index, came, ratio))
        return sources

    def renormalise(self, mixed: Tensor, ratio: float, shape: SmashedShape) -> None:
        """Make up for members that are missing, in place: weighted sums are divided by `ratio`.

        Patches are not weighted, prefix tokens are.
        """
        if shape.prefix and ratio != 1:
            mixed[:, : shape.prefix] /= ratio

    def split(self, gradient: Tensor, mixed: Mixed, plan: Plan) -> dict[int, list[Tensor | None]]:
        """Give each client the cut-layer gradient of its own share.

        Parameters
        ----------
        gradient
            Gradient of each group's loss with respect to `mixed.smashed`, same shape.

        Returns
        -------
        By client index, one tensor for each pass: the gradient of the upload (or, for broadcast,
        of the whole mixture), None where the pass returns none.
        """
        batch = plan.shape.batch
        result: dict[int, list[Tensor | None]] = {}
        for row, source in enumerate(mixed.sources):
            part = gradient[row * batch : (row + 1) * batch]
            if source.ratio != 1:
                part = part.clone()
                self.renormalise(part, source.ratio, plan.shape)
            for member in source.members:
                own = result.setdefault(member.client, [None] * len(plan.passes))
                if member.share.learns:
                    own[source.index] = member.share.pick(part)
        return result
