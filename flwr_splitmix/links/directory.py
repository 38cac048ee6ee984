"""The directory of nodes: which node holds which client, as the nodes report it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from flwr_splitmix.links.link import LinkError
from flwr_splitmix.links.polling import Mail, refusal, send_and_wait, wait_for, warn_of_ray
from flwr_splitmix.links.refusals import Refusals
from flwr_splitmix.links.simulated import ray_runs_here
from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.values import MAX_COUNT
from flwr_splitmix.words import counted

log = logging.getLogger("flwr.splitmix")

CLAIM_SECONDS = 15.0
"""Seconds for the holder of an index that another node claims to answer again."""

GRACE_SECONDS = 1.0
"""Seconds to wait for nodes that have been waited for before, in vain."""


class Directory:
    """Which node holds which client, by its `partition-id`; each node is asked once.

    A node that does not answer is asked again at every update, but waited for only once. One that
    answers with an error is asked again after growing pauses.

    Nodes report their own index. The first to report an index in a run keeps it while it is
    connected and answers; any other claimant is left out and logged. If several nodes claim a free
    index at the same time, all are left out until only one of them remains.

    Attributes
    ----------
    simulated
        By node id, whether the node reported to be a virtual node of a simulation.
    virtual
        Number of connected nodes if they are virtual, including those that do not answer; else 0.
    """

    def __init__(self) -> None:
        self.simulated: dict[int, bool] = {}
        self.virtual = 0
        self._clients: dict[int, int] = {}
        self._claims: dict[int, int] = {}
        self._left_out: dict[int, str] = {}
        self._silent: set[int] = set()
        self._parts: dict[int, int] = {}
        self._once = SeenKeys()
        self._late: Mail | None = None

    @property
    def partitions(self) -> dict[int, int]:
        """By client index, the number of parts of the data that its node reports."""
        return {c: self._parts[node] for node, c in self._clients.items() if node in self._parts}

    def update(self, grid: Grid, min_nodes: int, timeout: float) -> dict[int, int]:
        """Ask the nodes not known yet, and wait for the new ones among them.

        Beyond that, wait only until `min_nodes` nodes are known; all in all `timeout` seconds.

        Returns
        -------
        client index -> node id of the nodes connected now, sorted by index.

        Raises
        ------
        LinkError
            If there are fewer than `min_nodes` nodes with distinct indices in time, or none.
        """
        began = time.monotonic()
        refusals, asked_last = Refusals(), False
        self._ask_again(grid, refusals)
        while True:
            nodes = set(grid.get_node_ids())
            self._ask_new(grid, nodes, timeout, began, refusals)
            present = nodes - self._silent
            self._settle_claims(present)
            connected = {c: n for n, c in self._clients.items() if n in present}
            if len(connected) >= min_nodes and connected:
                self.virtual = len(nodes) if self._are_virtual(connected.values()) else 0
                self._warn_of_parts(connected)
                return dict(sorted(connected.items()))
            limit = self._limit(nodes, connected.values(), timeout, began, refusals)
            if time.monotonic() <= began + limit:
                time.sleep(0.5)
            elif refusals.of(nodes) and not asked_last:
                asked_last = True
                refusals.resume()
            else:
                self._raise_too_few(nodes, len(connected), min_nodes, limit, refusals)

    def _ask_new(
        self, grid: Grid, nodes: set[int], timeout: float, began: float, refusals: Refusals
    ) -> None:
        """Ask the nodes whose index is unknown, and those whose index is claimed by another."""
        new = nodes - self._clients.keys() - self._silent - self._left_out.keys()
        new -= refusals.paused()
        patience = max(began + timeout - time.monotonic(), 1.0)
        self._note(self._ask(grid, new, patience, refusals))
        if self._late is not None:
            self._note(self._read(self._late.poll(), refusals))
        if holders := self._held_and_claimed(nodes):
            # A restarted SuperNode has a new id; its old id no longer answers.
            answers = self._ask(grid, holders, min(timeout, CLAIM_SECONDS), refusals)
            self._silent |= holders - answers.keys()

    def _are_virtual(self, nodes: Collection[int]) -> bool:
        """Return whether there are nodes, and all have reported that they are simulated."""
        return bool(nodes) and all(self.simulated.get(node) for node in nodes)

    def _limit(
        self,
        nodes: set[int],
        connected: Collection[int],
        timeout: float,
        began: float,
        refusals: Refusals,
    ) -> float:
        """Return how many seconds after `began` no further nodes are waited for."""
        if self._are_virtual(nodes):
            # A simulation's nodes never grow in number; they are there from its beginning.
            return min(timeout, _VIRTUAL_WAIT_SECONDS)
        refuse = refusals.of(nodes)
        if refuse and nodes <= {*connected, *refuse} and ray_runs_here():
            # A failure in a simulation will not succeed later.
            return min(timeout, refusals.since - began + _VIRTUAL_WAIT_SECONDS)
        return timeout

    def _raise_too_few(
        self, nodes: set[int], answered: int, min_nodes: int, limit: float, refusals: Refusals
    ) -> NoReturn:
        why = refusals.sentence(
            f"node {n} is left out: {reason}" for n, reason in self._left_out.items() if n in nodes
        )
        if not answered and not why:
            warn_of_ray(limit)
        remedy = _MORE_VIRTUAL.format(min_nodes) if self._are_virtual(nodes) else _WAIT_LONGER
        how = " without an error" if refusals.of(nodes) else ""
        raise LinkError(
            f"{counted(answered, 'node')} answered{how} within {round(limit, 1):g} s, "
            f"min-nodes is {min_nodes}" + (f": {why}" if why else remedy)
        )

    def _note(self, answers: Mapping[int, int]) -> None:
        self._silent -= answers.keys()
        for node, client in answers.items():
            if self._clients.get(node) != client:
                self._clients.pop(node, None)
                self._claims[node] = client

    def leave_out(self, node: int, why: str) -> None:
        """Ignore a node for the rest of the run, and log why."""
        self._clients.pop(node, None)
        self._claims.pop(node, None)
        self._name(node, why)

    def _name(self, node: int, why: str) -> None:
        if node not in self._left_out:
            log.warning("node %d is left out: %s", node, why)
        self._left_out[node] = why

    def _ask(
        self, grid: Grid, nodes: Iterable[int], timeout: float, refusals: Refusals
    ) -> dict[int, int]:
        """Ask nodes for their index; return the valid answers, and add the others to `refusals`."""
        targets = sorted(nodes)
        replies = send_and_wait(grid, [_question(node) for node in targets], timeout)
        self._silent |= set(targets) - replies.keys()
        return self._read(replies, refusals)

    def _ask_again(self, grid: Grid, refusals: Refusals) -> None:
        """Ask the silent nodes once more; `_late` has the answers of those that take longer."""
        again = sorted((self._silent & set(grid.get_node_ids())) - self._left_out.keys())
        if again:
            earlier = () if self._late is None else self._late.unread
            self._late = Mail(grid, [_question(node) for node in again], earlier)
            wait_for(self._late, GRACE_SECONDS)
            self._note(self._read(self._late.replies, refusals))

    def _read(self, replies: Mapping[int, Message], refusals: Refusals) -> dict[int, int]:
        """Return the valid answers among replies, and add the others to `refusals`."""
        answers: dict[int, int] = {}
        for node, reply in replies.items():
            reason = refusal(reply)
            record = {} if reason else dict(reply.content.config_records.get(RECORD) or {})
            client = record.get("client")
            if reason is not None:
                refusals.add(node, reason)
            elif type(client) is not int:
                problem = "a node did not say its partition-id: is its app a SplitClientApp?"
                refusals.add(node, problem)
            elif not 0 <= client <= MAX_COUNT:
                self.leave_out(
                    node, f"{_REPORTED_INDEX} {client}; it must be from 0 to {MAX_COUNT}"
                )
            else:
                answers[node] = client
                refusals.remove(node)
                self.simulated[node] = bool(record.get("simulated"))
                if type(parts := record.get("partitions")) is int:
                    self._parts[node] = parts
        return answers

    def _warn_of_parts(self, connected: Mapping[int, int]) -> None:
        """Warn, once for the same numbers, of nodes that differ in the number of partitions."""
        clients_of: dict[int, list[int]] = {}
        for client, node in sorted(connected.items()):
            if node in self._parts:
                clients_of.setdefault(self._parts[node], []).append(client)
        if len(clients_of) > 1 and self._once.add_all(clients_of):
            summary = ", ".join(
                f"{parts} ({counted(len(clients), 'node')}, such as that of client {clients[0]})"
                for parts, clients in sorted(clients_of.items())
            )
            log.warning(
                "SuperNodes have different num-partitions: %s. Parts of a common data set overlap "
                "then: an example may belong to two clients, and the epsilon of one does not cover "
                "it; start all with the same number in --node-config",
                summary,
            )

    def _held_and_claimed(self, nodes: set[int]) -> set[int]:
        """Return the connected nodes whose index is claimed by a newly arrived node."""
        new = {c for n, c in self._claims.items() if n in nodes and n not in self._left_out}
        present = nodes - self._silent
        return {n for n, client in self._clients.items() if n in present and client in new}

    def _settle_claims(self, nodes: set[int]) -> None:
        """Assign every index to the first node that held it, else to its only claimant."""
        holders: dict[int, int] = {}
        for node, client in list(self._clients.items()):
            if node in nodes and holders.setdefault(client, node) != node:
                # It had replaced a node that is back.
                self._claims[node] = self._clients.pop(node)
        claims = {node: client for node, client in self._claims.items() if node in nodes}
        count = Counter(claims.values())
        for node, client in claims.items():
            if client in holders:
                self._name(
                    node, f"{_REPORTED_INDEX} {client}, which node {holders[client]} has; {_REMEDY}"
                )
            elif count[client] > 1:
                other = min(n for n, c in claims.items() if c == client and n != node)
                self._name(node, f"{_REPORTED_INDEX} {client} as node {other} does; {_REMEDY}")
            else:
                self._clients[node] = self._claims.pop(node)
                self._left_out.pop(node, None)


_VIRTUAL_WAIT_SECONDS = 5.0
"""Seconds to wait for further nodes of a simulation, or for those of it that fail."""

_MORE_VIRTUAL = "; give the simulation more: flwr run ... --federation-config 'num-supernodes={}'"

_WAIT_LONGER = (
    "; for nodes that come later raise attach-timeout (in Python strategy.start's attach_timeout)"
)

_REPORTED_INDEX = "it reports partition-id"
_REMEDY = "each SuperNode needs its own in --node-config"


def _question(node: int) -> Message:
    return Message(
        RecordDict({RECORD: ConfigRecord({})}), dst_node_id=node, message_type=MessageType.QUERY
    )
