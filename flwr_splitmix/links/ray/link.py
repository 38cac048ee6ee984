"""The link of Flower simulations: a few Ray actors, each holding many virtual clients."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from flwr_splitmix.description import Description, DescriptionError, read_description
from flwr_splitmix.links.in_run import RunLink
from flwr_splitmix.links.link import Clients, Observe, Outcome
from flwr_splitmix.links.polling import (
    refusal,
    release_record,
    send_and_wait,
    why_not_attached,
)
from flwr_splitmix.links.ray.actor import PackedTensor, convert_all, pack, unpack
from flwr_splitmix.links.ray.hosts import Hosts
from flwr_splitmix.links.ticket import LONGEST_WAIT, RECORD, Ticket, with_record
from flwr_splitmix.words import counted, not_attached

log = logging.getLogger("flwr.splitmix")

START_SECONDS = 120.0
"""Ray and the hosts may take this long to start, however short the timeouts of a round are."""


class RayClients(Clients):
    """Clients in actors; one call per host and exchange, for any number of clients.

    Parameters
    ----------
    handle_of
        By client index, the actor that holds the client.
    deadline
        Timeout of a call in seconds.
    """

    def __init__(
        self,
        server_round: int,
        descriptions: Mapping[int, Description],
        failures: Mapping[int, str],
        observe: Observe | None,
        *,
        handle_of: Mapping[int, Any],
        deadline: float,
    ) -> None:
        super().__init__(server_round, descriptions, failures, observe)
        self.handle_of = handle_of
        self.deadline = deadline

    def _exchange(
        self, method: str, payloads: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Outcome]:
        import ray

        by_host: dict[Any, dict[int, Any]] = {}
        for index, payload in payloads.items():
            by_host.setdefault(self.handle_of[index], {})[index] = payload
        pending = {
            handle.call.remote(method, convert_all(part, Tensor, pack)): part
            for handle, part in by_host.items()
        }
        ready, late = ray.wait(list(pending), num_returns=len(pending), timeout=self.deadline)
        outcomes: dict[int, Outcome] = {}
        for reference in late:
            reason = f"did not answer {method} within {self.deadline:g} s"
            outcomes |= dict.fromkeys(pending[reference], Outcome(None, reason))
        for reference in ready:
            try:
                outcomes |= {
                    index: Outcome(convert_all(o.reply, PackedTensor, unpack), o.error, o.seconds)
                    for index, o in ray.get(reference).items()
                }
            except ray.exceptions.RayError as error:
                reason = f"its host died ({type(error).__name__})"
                outcomes |= dict.fromkeys(pending[reference], Outcome(None, reason))
        return outcomes


class RayLink(RunLink):
    """Reaches the virtual clients of a Flower simulation through `ClientHost` actors.

    It joins the Ray session that the simulation started (or the cluster it joined with
    RAY_ADDRESS) and spreads its hosts over the nodes.

    Parameters
    ----------
    num_hosts
        Number of actors; 0 uses one per CPU, at most 4, but at least one per Ray node.
    host_gpus
        GPUs of each host; fractions share one.
    host_threads
        Torch threads of each host.
    state_dir
        Where clients' states are kept between rounds. On a cluster of several machines it must be
        shared storage, or a restarted host may not find its clients' states.
    attach_timeout, step_timeout
        Seconds to wait for clients to attach (for hosts to start at least 120), and for one
        exchange.

    Attributes
    ----------
    hosts
        The actors that hold the clients.
    """

    def __init__(
        self,
        *,
        num_hosts: int = 0,
        host_gpus: float = 0.0,
        host_threads: int = 1,
        state_dir: Path | None = None,
        attach_timeout: float = 120.0,
        step_timeout: float = 120.0,
    ) -> None:
        super().__init__(attach_timeout)
        self.step_timeout = step_timeout
        patience = max(attach_timeout, START_SECONDS)
        self.hosts = Hosts(num_hosts, host_gpus, host_threads, state_dir, patience)

    def open(self, grid: Grid | None) -> None:
        """Start the hosts and wait until they are ready.

        Raises
        ------
        LinkError
            If this is not a simulation, or the cluster cannot place the hosts.
        """
        self.hosts.start()

    @property
    def handles(self) -> list[Any]:
        """The actors; a client's actor is at its index modulo their number."""
        return self.hosts.handles

    def close(self) -> None:
        """Kill the hosts."""
        self.hosts.kill()

    @contextmanager
    def round(
        self, grid: Grid | None, messages: Sequence[Message], observe: Observe | None = None
    ) -> Iterator[Clients]:
        """Have the ClientApps attach their clients to hosts; at the end collect their replies."""
        grid = self.required_grid(grid)
        self.hosts.replace_lost()
        tickets, handle_of = {}, {}
        for message in messages:
            ticket = Ticket.from_message(message)
            host = self.hosts.of(ticket.client)
            handle_of[ticket.client] = host.handle
            wait = min(self.attach_timeout, LONGEST_WAIT)
            ticket = replace(ticket, link="ray", host=host.name, timeout=wait)
            message.content = with_record(message.content, ticket.to_record())
            tickets[message.metadata.dst_node_id] = ticket
        replies = send_and_wait(grid, messages, self.attach_timeout)
        descriptions, failures = _read_descriptions(tickets, replies, self.attach_timeout)
        server_round = next((t.server_round for t in tickets.values()), 0)
        clients = RayClients(
            server_round,
            descriptions,
            failures,
            observe,
            handle_of=handle_of,
            deadline=self.step_timeout,
        )
        yield clients
        if messages and messages[0].metadata.message_type == "train":
            self._finish(grid, clients, tickets, replies)
        elif messages:
            self.warn_of_metrics(replies.values())
            self._keep(tickets.values(), handle_of)

    def _keep(self, tickets: Iterable[Ticket], handle_of: Mapping[int, Any]) -> None:
        """Have the hosts save the states that an evaluation has changed."""
        import ray

        by_host: dict[Any, list[Ticket]] = {}
        for ticket in tickets:
            by_host.setdefault(handle_of[ticket.client], []).append(ticket)
        pending = [handle.keep.remote(part) for handle, part in by_host.items()]
        ready, late = ray.wait(pending, num_returns=len(pending), timeout=self.step_timeout)
        for reference in ready:
            try:
                for warning in ray.get(reference):
                    log.warning("%s", warning)
            except ray.exceptions.RayError as error:
                log.warning("a host died before it kept its clients' states (%s)", error)
        if late:
            log.warning(
                "the clients' states of %s were not kept in time", counted(len(late), "host")
            )

    def _finish(
        self,
        grid: Grid,
        clients: Clients,
        tickets: Mapping[int, Ticket],
        first_replies: Mapping[int, Message],
    ) -> None:
        ending = {node: t for node, t in tickets.items() if t.client not in clients.failures}
        messages = [
            Message(
                RecordDict({RECORD: ticket.to_record()}),
                dst_node_id=node,
                message_type="train.finish",
            )
            for node, ticket in ending.items()
        ]
        answers = send_and_wait(grid, messages, self.attach_timeout)
        replies: dict[int, Message] = {}
        for node, ticket in sorted(ending.items(), key=lambda item: item[1].client):
            reply = answers.get(node)
            if reply is None:
                clients.fail(ticket.client, "did not finish its round in time")
            elif (reason := refusal(reply)) is not None:
                clients.fail(ticket.client, reason)
            else:
                release_record(reply)
                _carry_metrics(first_replies[node], reply)
                replies[ticket.client] = reply
        clients.replies = replies


def _carry_metrics(first_reply: Message, reply: Message) -> None:
    """Add the metrics in the first reply of a client's round, which are a mod's, to its last one.

    On a SuperNode the first reply is the last one. Of two metrics of one name, the last counts.
    """
    for key, record in first_reply.content.metric_records.items():
        last = reply.content.get(key, record)
        if isinstance(last, MetricRecord):
            reply.content[key] = MetricRecord({**record, **last})


def _read_descriptions(
    tickets: Mapping[int, Ticket], replies: Mapping[int, Message], timeout: float
) -> tuple[dict[int, Description], dict[int, str]]:
    descriptions: dict[int, Description] = {}
    failures: dict[int, str] = {}
    for node, ticket in tickets.items():
        reply = replies.get(node)
        if reply is None:
            failures[ticket.client] = not_attached(timeout)
        elif refusal(reply) is None and (record := reply.content.config_records.get(RECORD)):
            try:
                descriptions[ticket.client] = read_description(record)
            except DescriptionError as error:
                failures[ticket.client] = str(error)
        else:
            failures[ticket.client] = why_not_attached(reply)
    return descriptions, failures
