"""Clients' uploads in a step, and the mixture made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from flwr_splitmix.labels import known_rows
from flwr_splitmix.mixers.plan import Member


@dataclass(frozen=True)
class Upload:
    """The uploads of one client in a step.

    Parameters
    ----------
    smashed
        One tensor (b, a, d) per pass; None if the client has no share in it.
    labels
        int64 (b,), or multi-label (b, L); or soft labels, weighted by the client: floats (b, L)
        per pass, None if the client has no share in it.
    """

    smashed: Sequence[Tensor | None]
    labels: Tensor | Sequence[Tensor | None]

    def targets(self, index: int, lam: float, num_classes: int, like: Tensor) -> Tensor:
        """Return this client's part of a group's targets in one pass: (b, L), weighted.

        A label that is not a class counts for nothing. Clients that must not send one are refused
        before.

        Parameters
        ----------
        like
            A tensor with the dtype and device of the result.
        """
        if isinstance(self.labels, Tensor):
            return lam * known_rows(self.labels.to(like.device), num_classes, like.dtype)
        soft = self.labels[index]
        assert soft is not None, "an upload that passed the check has every pass"
        return soft.to(like)


@dataclass(frozen=True)
class Source:
    """The origin of one group's mixture.

    Parameters
    ----------
    index
        The pass it belongs to.
    members
        The members whose uploads arrived.
    ratio
        The sum of their mixing ratios: 1 if all arrived.
    parts
        Clients in each part of a batch that arrived in parts, if a client of the step dropped out
        between two of them; else empty.
    """

    index: int
    members: tuple[Member, ...]
    ratio: float
    parts: tuple[frozenset[int], ...] = ()

    @property
    def came(self) -> tuple[frozenset[int], ...]:
        """Clients in the sum by part of the batch; one part if the same were in all of it."""
        return self.parts or (frozenset(member.client for member in self.members),)

    @property
    def divisor(self) -> float:
        """The divisor of sums of smashed data: the ratio, or 1 if a member's hold noise.

        Noise is as large at every ratio, and a ratio can be as small as 1e-6.
        """
        return 1.0 if any(member.share.noised for member in self.members) else self.ratio

    @property
    def labels_divisor(self) -> float:
        """The divisor of sums of labels: the ratio, or 1 if a member's hold noise."""
        return 1.0 if any(member.share.labels_noised for member in self.members) else self.ratio


@dataclass(frozen=True)
class Mixed:
    """The mixtures from which the upper segment learns in a step.

    Parameters
    ----------
    smashed
        (groups * b, prefix + N, d), group after group.
    targets
        Soft labels (groups * b, L), float32 or float64, that sum to 1; mixed multi-label ones each
        lie in 0..1. With noise on labels they are the sums of what came, whatever these amount to.
    sources
        The origin of each group, in order.
    """

    smashed: Tensor
    targets: Tensor
    sources: tuple[Source, ...]
