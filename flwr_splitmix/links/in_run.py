"""The base class of links to the nodes of a Flower run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from flwr_splitmix.links.directory import Directory
from flwr_splitmix.links.link import Link, LinkError
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.words import listed, one_line

log = logging.getLogger("flwr.splitmix")


class RunLink(Link):
    """A link to the nodes of a Flower run; each node's `partition-id` is its client's index.

    Parameters
    ----------
    attach_timeout
        Seconds to wait for nodes to answer.

    Attributes
    ----------
    nodes
        The directory of nodes and clients, as far as nodes were asked.
    """

    def __init__(self, attach_timeout: float) -> None:
        self.attach_timeout = attach_timeout
        self.nodes = Directory()
        self._once = SeenKeys()

    def directory(self, grid: Grid | None, min_nodes: int) -> dict[int, int]:
        """Return client index -> node id; each node is asked once for its partition-id."""
        return self.nodes.update(self.required_grid(grid), min_nodes, self.attach_timeout)

    @property
    def virtual_nodes(self) -> int | None:
        """Number of virtual nodes of the simulation; 0 with SuperNodes."""
        return self.nodes.virtual

    @property
    def partitions(self) -> Mapping[int, int]:
        """By client index, the number of parts of the data that its node reports."""
        return self.nodes.partitions

    def warn_of_metrics(self, replies: Iterable[Message]) -> None:
        """Log, once, which metrics mods have added to replies of an evaluation: nothing reads them.

        Parameters
        ----------
        replies
            Of whatever messages.
        """
        names = {
            name
            for reply in replies
            if reply.metadata.message_type == MessageType.EVALUATE and reply.has_content()
            for record in reply.content.metric_records.values()
            for name in record
        }
        if names and self._once.add("metrics"):
            log.warning(
                "left out of the run's metrics: %s, which a mod adds to replies of an evaluation; "
                "add them to replies of training",
                listed((repr(one_line(name)[:60]) for name in sorted(names)), most=5),
            )

    def required_grid(self, grid: Grid | None) -> Grid:
        """Return the run's grid.

        Raises
        ------
        LinkError
            If there is no grid.
        """
        return require_grid(grid, type(self).__name__)


def require_grid(grid: Grid | None, name: str) -> Grid:
    """Return the grid of a run; raise LinkError with the link's name if there is none."""
    if grid is None:
        raise LinkError(f"{name} works inside a Flower run only; use strategy.fit(clients, ...)")
    return grid
