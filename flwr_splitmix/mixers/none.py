"""No mixing: parallel split learning (PSL) and SplitFed (SFL)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_splitmix.mixers.mixer import Group, Member, Mixer, Plan, SmashedShape
from flwr_splitmix.mixers.share import FullShare


class NoMixing(Mixer):
    """Every client is a group of its own and uploads all its smashed data."""

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Return one group for each client; nothing is drawn."""
        return Plan(shape, (tuple(Group((Member(c, FullShare()),)) for c in members),))
