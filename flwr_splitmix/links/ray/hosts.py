"""The hosts of a simulation's clients: Ray actors, placed on the nodes of the cluster."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

from flwr_splitmix.extras import how_to_install
from flwr_splitmix.links.link import LinkError
from flwr_splitmix.links.ray.actor import RayHost
from flwr_splitmix.words import counted

log = logging.getLogger("flwr.splitmix")

_Node = Mapping[str, Any]


@dataclass(frozen=True)
class Host:
    """An actor, its name, and the id of its Ray node."""

    name: str
    home: str
    handle: Any


def _names() -> Iterator[str]:
    """Yield distinct actor names that are unique in the Ray cluster."""
    token = secrets.token_hex(4)
    return (f"splitmix-{token}-{place}" for place in count())


class Hosts:
    """Starts the actors that hold clients, replaces those that are lost, and kills them.

    Parameters
    ----------
    number
        Number of actors; 0 uses one per CPU, at most 4, but at least one per Ray node.
    gpus
        GPUs of each; fractions share one.
    threads
        Torch threads of each.
    state_dir
        Where they keep clients' states between rounds; None keeps them in memory only.
    patience
        Seconds to wait for Ray, and for actors to start.
    """

    def __init__(
        self, number: int, gpus: float, threads: int, state_dir: Path | None, patience: float
    ) -> None:
        self.number = number
        self.gpus = gpus
        self.threads = threads
        self.state_dir = state_dir
        self.patience = patience
        self._hosts: list[Host] = []
        self._names = _names()

    @property
    def handles(self) -> list[Any]:
        """The actors, in the order of their places."""
        return [host.handle for host in self._hosts]

    def of(self, client: int) -> Host:
        """Return the host of a client: the one at its index modulo their number."""
        return self._hosts[client % len(self._hosts)]

    def start(self) -> None:
        """Start the hosts and wait until they are ready.

        Raises
        ------
        LinkError
            If this is not a simulation, or the cluster cannot place the hosts.
        """
        ray = self._wait_for_ray()
        nodes = _alive_nodes(ray)
        cpus = sum(int(node["Resources"].get("CPU", 0)) for node in nodes)
        host_count = self.number or max(len(nodes), min(cpus, 4), 1)
        self._hosts = self._started(ray, host_count, nodes)
        homes = {host.home for host in self._hosts}
        log.info("%s on %s", counted(host_count, "client host"), counted(len(homes), "Ray node"))

    def replace_lost(self) -> None:
        """Restart the hosts of lost Ray nodes on the remaining nodes."""
        ray = self._wait_for_ray()
        nodes = _alive_nodes(ray)
        alive = {node["NodeID"] for node in nodes}
        lost = [place for place, host in enumerate(self._hosts) if host.home not in alive]
        if lost:
            log.warning(
                "%s lost with their Ray node; starting as many", counted(len(lost), "client host")
            )
            # In the old places, as a client's index determines its host.
            for place, host in zip(lost, self._started(ray, len(lost), nodes), strict=True):
                self._hosts[place] = host

    def kill(self) -> None:
        """Kill the hosts."""
        if self._hosts:  # otherwise Ray may be missing, which `start` reports
            import ray

            for handle in self.handles:
                if ray.is_initialized():
                    ray.kill(handle)
        self._hosts = []

    def _wait_for_ray(self) -> Any:
        try:
            import ray
        except ImportError as error:
            raise LinkError(f"link = 'ray' needs Ray: {how_to_install('simulation')}") from error
        deadline = time.monotonic() + self.patience
        while not ray.is_initialized():
            if time.monotonic() > deadline:
                raise LinkError(
                    f"no Ray session within {self.patience:g} s: this run is not a "
                    "simulation, and deployed SuperNodes cannot be reached over Ray"
                )
            time.sleep(0.05)
        return ray

    def _started(self, ray: Any, number: int, nodes: Sequence[_Node]) -> list[Host]:
        """Start `number` hosts, each with its own name, and wait until they are ready."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = ray.remote(RayHost)
        hosts = []
        for node in self._placed(nodes, number):
            name, home = next(self._names), node["NodeID"]
            handle = actor.options(
                name=name,
                num_cpus=0,
                num_gpus=self.gpus,
                max_restarts=-1,
                # Ray's own "SPREAD", and a soft affinity too, put actors without CPUs anywhere.
                scheduling_strategy=NodeAffinitySchedulingStrategy(home, soft=False),
            ).remote(self.threads, str(self.state_dir or ""))
            hosts.append(Host(name, home, handle))
        try:
            ray.get([host.handle.ready.remote() for host in hosts], timeout=self.patience)
        except ray.exceptions.GetTimeoutError:
            for host in hosts:
                ray.kill(host.handle)
            raise LinkError(
                f"{counted(number, 'host')} with {self.gpus:g} GPUs each did not start within "
                f"{self.patience:g} s; free in the cluster are {ray.available_resources()}"
            ) from None
        return hosts

    def _placed(self, nodes: Sequence[_Node], hosts: int) -> list[_Node]:
        """Return a Ray node for each host, round-robin among those with enough GPUs."""
        if not self.gpus:
            return list(islice(cycle(nodes), hosts))
        gpus = [float(node["Resources"].get("GPU", 0)) for node in nodes]
        # A host does not span nodes; the small constant compensates for rounding.
        room = [int(available / self.gpus + 1e-9) for available in gpus]
        if sum(room) < hosts:
            raise LinkError(
                f"{counted(hosts, 'host')} with {self.gpus:g} GPUs each cannot be placed: Ray "
                f"has {sum(gpus):g} GPUs on {counted(len(nodes), 'node')}, room for {sum(room)} of "
                "them; lower host-gpus or num-hosts"
            )
        turns = range(max(room))
        places = [node for turn in turns for node, n in zip(nodes, room, strict=True) if turn < n]
        return places[:hosts]


def _alive_nodes(ray: Any) -> list[_Node]:
    return [node for node in ray.nodes() if node["Alive"]]
