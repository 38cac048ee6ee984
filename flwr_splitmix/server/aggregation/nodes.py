"""Grids as an aggregator sees them: the nodes of one round, or none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from flwr.serverapp import Grid

WAIT_SECONDS = 60.0
"""Time for which an aggregator may keep asking for nodes: their number does not grow."""


class AggregatorError(ValueError):
    """A Flower strategy cannot aggregate lower segments here."""


def waits_for_ever(name: str, nodes: int) -> AggregatorError:
    """Return the error of a strategy that needs more nodes than take part in a round."""
    return AggregatorError(
        f"{name} waits for more nodes than the {nodes} that take part in the round; lower its "
        "min_train_nodes and min_available_nodes"
    )


class NodesWanted(Exception):  # noqa: N818 - nothing is wrong
    """Raised when a strategy is about to draw the nodes of a round."""


class NoNodes:
    """Stands in for a missing grid: stops a strategy when it asks for nodes."""

    def get_node_ids(self) -> list[int]:
        """Raise NodesWanted."""
        raise NodesWanted


class SampledNodes:
    """A grid with only the nodes that were sampled for the round.

    Parameters
    ----------
    grid
        The grid of the run.
    nodes
        Ids of the nodes of the round.
    name
        Name of the strategy that asks for them, for the error.
    """

    def __init__(self, grid: Grid, nodes: Sequence[int], name: str) -> None:
        self._grid = grid
        self._nodes = list(nodes)
        self._name = name
        self._deadline = time.monotonic() + WAIT_SECONDS

    def get_node_ids(self) -> list[int]:
        """Return the nodes of the round.

        Raises
        ------
        AggregatorError
            If the strategy has been asking for a minute: one that samples by itself may wait
            without limit for more nodes.
        """
        if time.monotonic() > self._deadline:
            raise waits_for_ever(self._name, len(self._nodes))
        return list(self._nodes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)
