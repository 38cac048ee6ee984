"""The automatic choice of a link: Ray in simulations, the stream link in deployments."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_splitmix.links.directory import Directory
from flwr_splitmix.links.in_run import RunLink, require_grid
from flwr_splitmix.links.link import Clients, Link, LinkError, Observe
from flwr_splitmix.links.ray.link import RayLink
from flwr_splitmix.links.simulated import ray_runs_here
from flwr_splitmix.links.stream.link import StreamLink

if TYPE_CHECKING:  # a node needs neither results nor the modules that read them
    from flwr_splitmix.runs import Run

log = logging.getLogger("flwr.splitmix")

NAME = "link 'auto'"


def in_simulation(grid: Grid, nodes: Directory, min_nodes: int, timeout: float) -> bool:
    """Return whether the nodes of a run are simulated.

    Flower does not report it to a ServerApp, so nodes do with their partition-ids: a ClientApp in a
    Ray actor belongs to a simulation. If nodes disagree, this process decides: a simulation's
    ServerApp runs in the process that started Ray. Nodes that disagree with it are left out.
    If Ray is not installed here, nodes are not asked.

    Parameters
    ----------
    nodes
        Caches the nodes' answers.
    min_nodes
        The number of nodes that must answer.

    Raises
    ------
    LinkError
        If fewer nodes answer within `timeout` seconds.
    """
    if importlib.util.find_spec("ray") is None:
        return False
    node_ids = nodes.update(grid, min_nodes, timeout).values()
    if len({nodes.simulated[node] for node in node_ids}) == 1:
        return nodes.simulated[next(iter(node_ids))]
    simulation = ray_runs_here()
    for node in node_ids:
        if nodes.simulated[node] != simulation:
            kind = "virtual, and this is not a simulation" if not simulation else "no virtual one"
            nodes.leave_out(node, f"it reports that it is {kind}")
    return simulation


class AutoLink(Link):
    """The link that the run needs, chosen when its nodes are first asked.

    Parameters
    ----------
    simulation, deployment
        Factories of the link for a simulation and for a deployment; only one is called.
    attach_timeout
        Seconds to wait for the first nodes, which decide the link; it has a timeout of its own.
    """

    def __init__(
        self,
        simulation: Callable[[], Link],
        deployment: Callable[[], Link],
        attach_timeout: float = 120.0,
    ) -> None:
        self._makers = {True: simulation, False: deployment}
        self._attach_timeout = attach_timeout
        self._nodes = Directory()
        self._chosen: Link | None = None

    @property
    def chosen(self) -> Link:
        """The link in use.

        Raises
        ------
        LinkError
            If the nodes have not been asked yet.
        """
        if self._chosen is None:
            raise LinkError("link 'auto' has not asked its nodes yet which link they need")
        return self._chosen

    @property
    def virtual_nodes(self) -> int | None:
        """That of the chosen link."""
        return self.chosen.virtual_nodes

    @property
    def partitions(self) -> Mapping[int, int]:
        """That of the chosen link."""
        return self.chosen.partitions

    @property
    def rounds_uploads(self) -> bool:
        """That of the chosen link."""
        return self.chosen.rounds_uploads

    def open(self, grid: Grid | None) -> None:
        """Check that there is a grid; the link is chosen in `directory`."""
        require_grid(grid, NAME)

    def directory(self, grid: Grid | None, min_nodes: int) -> dict[int, int]:
        """Return the available nodes; the first call chooses and opens the link.

        Raises
        ------
        LinkError
            If fewer than `min_nodes` answer in time, or the link cannot be opened.
        """
        if self._chosen is None:
            grid = require_grid(grid, NAME)
            simulated = in_simulation(grid, self._nodes, min_nodes, self._attach_timeout)
            self._chosen = self._makers[simulated]()
            self._chosen.run_of_strategy = self.run_of_strategy
            self._chosen.key_of_strategy = self.key_of_strategy
            log.info("link: %s", type(self._chosen).__name__)
            if isinstance(self._chosen, RunLink):
                self._chosen.nodes = self._nodes
            self._chosen.open(grid)
        return self._chosen.directory(grid, min_nodes)

    def round(
        self, grid: Grid | None, messages: Sequence[Message], observe: Observe | None = None
    ) -> AbstractContextManager[Clients]:
        """Attach clients over the chosen link."""
        return self.chosen.round(grid, messages, observe)

    def close(self) -> None:
        """Close the chosen link."""
        if self._chosen is not None:
            self._chosen.close()
            self._chosen = None
            self._nodes = Directory()


def default_link(run: Run | None, attach_timeout: float) -> AutoLink:
    """Return a strategy's default link: Ray, or the stream link on this machine only.

    For SuperNodes on other machines, pass the strategy a `StreamLink` with a certificate.
    """
    return AutoLink(
        lambda: RayLink(
            state_dir=None if run is None else run.clients_dir, attach_timeout=attach_timeout
        ),
        lambda: StreamLink(address="127.0.0.1:0", attach_timeout=attach_timeout),
        attach_timeout=attach_timeout,
    )
