"""A share and a mixer of somebody's own: each member keeps some channels of every patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from torch import Tensor

from flwr_splitmix.mixers import Group, Member, Mixer, Plan, Share, SmashedShape


@dataclass(frozen=True, kw_only=True)
class ChannelShare(Share):
    """The channels `start` to `stop` of all patches."""

    name: ClassVar[str] = "channels"
    start: int
    stop: int

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        channels = smashed[..., self.start : self.stop]
        return channels, channels

    def upload_shape(self, smashed: tuple[int, int, int]) -> tuple[int, int, int]:
        return smashed[0], smashed[1], len(range(smashed[2])[self.start : self.stop])

    def place(self, mixed: Tensor, upload: Tensor) -> None:
        mixed[..., self.start : self.stop] = upload

    def pick(self, gradient: Tensor) -> Tensor:
        return gradient[..., self.start : self.stop]


class ChannelMix(Mixer):
    """All clients in one group, with consecutive channels."""

    shares = (ChannelShare,)

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        n, width = len(members), shape.width
        ends = [place * width // n for place in range(n + 1)]
        shares = (
            ChannelShare(lam=(stop - start) / width, start=start, stop=stop)
            for start, stop in pairwise(ends)
        )
        pairs = zip(members, shares, strict=True)
        group = Group(tuple(Member(client, share) for client, share in pairs))
        return Plan(shape, ((group,),))
