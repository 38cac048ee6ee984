"""The mixer of frozen edges: nothing is mixed or sent back, and the server has the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flwr_splitmix.mixers.full_share import FullShare
from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.plan import Plan, SmashedShape, each_alone
from flwr_splitmix.mixers.share import LabelKind


@dataclass(frozen=True, kw_only=True)
class IdShare(FullShare):
    """Everything, with the examples' ids instead of their labels, and no gradient in return."""

    name: ClassVar[str] = "ids"
    learns: bool = False

    @property
    def label_kind(self) -> LabelKind:
        """Ids, int64 (b,): each example's index in its client's data."""
        return "ids"


class FrozenEdge(Mixer):
    """Every client is a group of its own, uploads everything, and gets no gradient.

    The protection comes from the client's frozen edge (patch shuffling), not from what happens
    between client and upper segment.

    Parameters
    ----------
    needs_whole_batch
        Whether the edges exchange patches within a batch.

    Source: Patch Shuffling, section IV.
    """

    takes_noise = False

    def __init__(self, *, needs_whole_batch: bool = False) -> None:
        self.needs_whole_batch = needs_whole_batch

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Return one group for each client; nothing is drawn."""
        return each_alone(shape, ((client, IdShare()) for client in members))
