"""The local link: clients in the server's own process, for notebooks, tests and one GPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_splitmix.clients import Client
from flwr_splitmix.description import Description, read_description
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.links.errors import sentence
from flwr_splitmix.links.host import ClientHost, logged_reason
from flwr_splitmix.links.link import Clients, Link, LinkError, Observe, Outcome
from flwr_splitmix.links.polling import release_record
from flwr_splitmix.links.ticket import Ticket, arrays_of, release_content
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.words import are, counted

log = logging.getLogger("flwr.splitmix")


class LocalClients(Clients):
    """Clients that are called directly; tensors are passed without copying.

    Parameters
    ----------
    host
        Holds the clients of the round, and calls them.
    """

    def __init__(
        self,
        server_round: int,
        descriptions: Mapping[int, Description],
        failures: Mapping[int, str],
        observe: Observe | None,
        *,
        host: ClientHost,
    ) -> None:
        super().__init__(server_round, descriptions, failures, observe)
        self.host = host

    def _exchange(
        self, method: str, payloads: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Outcome]:
        return self.host.call(method, payloads)


class LocalLink(Link):
    """Calls clients in this process.

    Parameters
    ----------
    clients
        The live clients; their position is their index.
    state_dir
        Where their states are saved between rounds; None keeps them in memory only.

    Raises
    ------
    ValueError
        If two clients train the same weights.
    """

    def __init__(self, clients: Sequence[Client], state_dir: Path | None = None) -> None:
        self.clients = list(clients)
        _check_own_weights(self.clients)
        self.host = ClientHost(None if state_dir is None else ClientStore(state_dir))

    def open(self, grid: Grid | None) -> None:
        """Do nothing: the clients are here."""

    def close(self) -> None:
        """Close the clients, which the caller continues to use."""
        for client in self.clients:
            client.close()

    def directory(self, grid: Grid | None, min_nodes: int) -> dict[int, int]:
        """Return all clients, with index + 1 as node id.

        Raises
        ------
        LinkError
            If there are fewer than `min_nodes`.
        """
        if (n := len(self.clients)) < min_nodes:
            raise LinkError(f"there {are(n)} {counted(n, 'client')}, min_nodes is {min_nodes}")
        return {index: index + 1 for index in range(len(self.clients))}

    @contextmanager
    def round(
        self, grid: Grid | None, messages: Sequence[Message], observe: Observe | None = None
    ) -> Iterator[Clients]:
        """Attach the clients addressed by the messages; at the end build their replies."""
        tickets = [Ticket.from_message(message) for message in messages]
        descriptions: dict[int, Description] = {}
        failures: dict[int, str] = {}
        for ticket, message in zip(tickets, messages, strict=True):
            index = ticket.client
            try:
                description = self.host.attach(
                    ticket, partial(self.clients.__getitem__, index), arrays_of(message.content)
                )
                descriptions[index] = read_description(description)
            except Exception as error:  # the same failure rule as over any other link
                failures[index] = logged_reason(index, "attach", error)
        server_round = tickets[0].server_round if tickets else 0
        clients = LocalClients(server_round, descriptions, failures, observe, host=self.host)
        yield clients
        replies: dict[int, Message] = {}
        for ticket, message in zip(tickets, messages, strict=True):
            if message.metadata.message_type != "train":
                if warning := self.host.keep_if_changed(ticket):
                    log.warning("%s", warning)
            elif ticket.client not in clients.failures:
                try:
                    arrays, metrics, warning = self.host.finish(ticket)
                    content = release_content(to_arrays(arrays), metrics, warning)
                except Exception as error:  # the same failure rule as over any other link
                    clients.fail(ticket.client, logged_reason(ticket.client, "release", error))
                    continue
                reply = Message(content, reply_to=message)
                release_record(reply)
                replies[ticket.client] = reply
        clients.replies = replies

    def restore_unasked(self, finished: int) -> None:
        """Restore the clients that no round of this link has asked, as after round `finished`.

        Their privacy ledgers stay as they are. A warning names clients that their states do not
        fit.
        """
        if self.host.store is None:
            return
        for index, client in enumerate(self.clients):
            if index in self.host.clients:
                continue
            try:
                state = self.host.store.load(index, at_most=finished)
                if state is not None:
                    client.restore_trained(*state[1:])
            except Exception as error:  # the same failure rule as in a round
                log.warning("client %d is not as the run left it: %s", index, sentence(error))


def _check_own_weights(clients: Sequence[Client]) -> None:
    owners: dict[int, int] = {}
    for index, client in enumerate(clients):
        for part in (client, *client.trainable_parameters()):
            if (other := owners.setdefault(id(part), index)) == index:
                continue
            if part is client:
                raise ValueError(
                    f"clients {other} and {index} are one object; make a client for each"
                )
            raise ValueError(
                f"clients {other} and {index} train the same weights, as if they were one; "
                "give each its own segment, such as copy.deepcopy(lower)"
            )
