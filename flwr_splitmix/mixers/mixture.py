"""Clients' uploads of a step, and the mixture made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.mixers.plan import Member


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
