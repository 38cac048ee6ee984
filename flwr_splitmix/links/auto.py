"""Which link a run needs: Ray in a simulation, the stream with deployed SuperNodes."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_splitmix.links.link import Clients, Link, LinkError, Observe
from flwr_splitmix.links.polling import Directory

log = logging.getLogger("flwr.splitmix")


def in_simulation(grid: Grid, nodes: Directory, timeout: float) -> bool:
    """Return whether the nodes of a run are virtual.

    Flower does not tell a ServerApp, so the nodes do, with their partition-ids: a ClientApp that
    finds itself in a Ray actor is a simulation's. Without Ray installed here no question is asked.

    Parameters
    ----------
    nodes
        Keeps what the nodes say, so that they are not asked again.

    Raises
    ------
    LinkError
        If no node answers within `timeout` seconds, or some are virtual and others are not.
    """
    if importlib.util.find_spec("ray") is None:
        return False
    nodes.update(grid, 1, timeout)
    if len(kinds := set(nodes.simulated.values())) > 1:
        raise LinkError("some nodes of this run are virtual and others are not")
    return kinds == {True}


class AutoLink(Link):
    """The link that the run needs, chosen when it is opened.

    Parameters
    ----------
    simulation, deployment
        Make the link of a simulation and that of a deployment; only the one needed is called.
    timeout
        Seconds to wait for a first node.
    """

    def __init__(
        self,
        simulation: Callable[[], Link],
        deployment: Callable[[], Link],
        timeout: float = 120.0,
    ) -> None:
        self._makers = {True: simulation, False: deployment}
        self._timeout = timeout
        self._chosen: Link | None = None

    @property
    def chosen(self) -> Link:
        """The link in use.

        Raises
        ------
        LinkError
            If none has been opened yet.
        """
        if self._chosen is None:
            raise LinkError("link 'auto' has not been opened")
        return self._chosen

    def open(self, grid: Grid | None) -> None:
        """Ask the nodes what they are, and start the link that reaches them."""
        if grid is None:
            raise LinkError("link 'auto' works inside a Flower run only; use strategy.fit(clients)")
        nodes = Directory()
        self._chosen = self._makers[in_simulation(grid, nodes, self._timeout)]()
        log.info("link: %s", type(self._chosen).__name__)
        if hasattr(self._chosen, "nodes"):
            self._chosen.nodes = nodes
        self._chosen.open(grid)

    def directory(self, grid: Grid | None, min_nodes: int) -> dict[int, int]:
        """Return the nodes that the chosen link can ask."""
        return self.chosen.directory(grid, min_nodes)

    def round(
        self, grid: Grid | None, messages: Sequence[Message], observe: Observe | None = None
    ) -> AbstractContextManager[Clients]:
        """Attach clients over the chosen link."""
        return self.chosen.round(grid, messages, observe)

    def close(self) -> None:
        """End the chosen link."""
        if self._chosen is not None:
            self._chosen.close()
            self._chosen = None
