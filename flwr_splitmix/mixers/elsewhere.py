"""Mixing by a third party: the server's view of it.

The server then treats each mixing group as a client: it sends a mixture and soft labels, and gets
the mixture's gradient. Only the third party knows the members of the groups and their masks
(`flwr_splitmix.mixer_process`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from flwr_splitmix.labels import loss_dtype
from flwr_splitmix.mixers.described import describe
from flwr_splitmix.mixers.full_share import FullShare
from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.noisy import Noisy
from flwr_splitmix.mixers.plan import Plan, SmashedShape, each_alone
from flwr_splitmix.mixers.share import LabelKind, Share
from flwr_splitmix.mixers.wrapper import OuterMixer


@dataclass(frozen=True, kw_only=True)
class _GroupShare(FullShare):
    """A mixing group's part of a step: a mixture that was made elsewhere, with soft labels."""

    name: ClassVar[str] = "group"

    @property
    def label_kind(self) -> LabelKind:
        """Soft labels, already weighted by the members' mixing ratios."""
        return "soft"

    def label_dtype(self, smashed: torch.dtype) -> torch.dtype:
        """Return that of a mixture's targets."""
        return loss_dtype(smashed)

    @property
    def mixed(self) -> bool:
        """True: a group has several members."""
        return True


@dataclass(frozen=True, kw_only=True)
class _NoisyGroupShare(_GroupShare):
    """A mixture to whose smashed data and labels the members have added noise."""

    name: ClassVar[str] = "noisy-group"

    @property
    def label_range(self) -> tuple[float, float]:
        """Unlimited: the server does not know how many noisy labels a sum has."""
        return -math.inf, math.inf


GROUP_SHARES: tuple[type[Share], ...] = (_GroupShare, _NoisyGroupShare)
"""The shares of groups: clients do not know them, and they are never sent to a client."""


class MixedElsewhere(OuterMixer):
    """The server's view of a mixer run by a third party: one mixture from each group.

    Parameters
    ----------
    mixer
        The mixer that the third party is asked to run.

    Raises
    ------
    ValueError
        As `describe`.
    """

    def __init__(self, mixer: Mixer) -> None:
        # Each mixture is alone here, whole, and has soft labels.
        super().__init__(mixer, cover="partition", needs_whole_batch=True, takes_noise=False)
        self.description = describe(mixer)

    def __str__(self) -> str:
        return f"{self.mixer} of a third party"

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Ask each group for its mixture; nothing is drawn here."""
        share = _NoisyGroupShare() if isinstance(self.mixer, Noisy) else _GroupShare()
        return each_alone(shape, ((group, share) for group in members))
