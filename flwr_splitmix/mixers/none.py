"""No mixing: parallel split learning (PSL) and SplitFed (SFL)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_splitmix.mixers.full_share import FullShare
from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.plan import Plan, SmashedShape, each_alone


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
        return each_alone(shape, ((client, FullShare()) for client in members))
