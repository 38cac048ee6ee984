"""The stream link: each SuperNode's ClientApp connects to the ServerApp for a round."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import Grid

from flwr_splitmix.description import Description
from flwr_splitmix.links.dialled import DialledLink
from flwr_splitmix.links.frames.codec import MAX_BODY
from flwr_splitmix.links.frames.feedback import Feedback
from flwr_splitmix.links.link import Clients, LinkError, Observe
from flwr_splitmix.links.polling import Mail
from flwr_splitmix.links.stream.absence import Absence
from flwr_splitmix.links.stream.clients import Changes, StreamClients, next_changes
from flwr_splitmix.links.stream.endpoint import Endpoint
from flwr_splitmix.links.stream.line import Line
from flwr_splitmix.links.stream.replies import POLL_SECONDS, collect
from flwr_splitmix.links.stream.server import StreamServer, StreamService
from flwr_splitmix.links.stream.token import Admission, TokenMint
from flwr_splitmix.links.ticket import Ticket, with_record
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.words import one_line

log = logging.getLogger("flwr.splitmix")


@dataclass(frozen=True)
class _Seat:
    """One client's place in a round."""

    client: int
    node: int
    admission: Admission
    line: Line


class StreamLink(DialledLink):
    """Reaches the clients of deployed SuperNodes: they dial in over gRPC, with TLS and a token.

    Parameters
    ----------
    certificate, key, ca, client_ca, insecure, address, advertise
        Addresses to listen on and to advertise, and certificates: see `stream.endpoint.Endpoint`.
        By default the link listens on the loopback, for SuperNodes on this machine. Without a
        certificate no other address is allowed, unless `insecure`.
    wire_dtype
        Dtype of activations and gradients on the wire: "keep", "float32", "bfloat16", "float16",
        or "int8" or "int4" with a scale per patch, rounded to nearest or stochastically
        ("int8-stochastic", "int4-stochastic"). Labels are always sent unchanged.
    wire_dtype_down
        Dtype of the gradients sent to clients, if different; "" uses `wire_dtype`.
    wire_feedback
        Whether the rounding error of a client's gradients is added to its next ones.
    run
        Id of the run, under which nodes keep their clients' states so that a resumed run finds
        them: another one for each run. "" takes that of the strategy's run, and without one keeps
        them for one `start`. Nodes know a run again by the key in its directory; without one, only
        this link finds the states of that id.
    attach_timeout
        Seconds to wait for nodes to attach, and for their replies at the end of a round.
    step_timeout
        Seconds to wait for one exchange.
    reattach_timeout
        Seconds within which a node must reattach after its connection broke.
    token_seconds
        How long a node's token is valid for attaching; no round may take longer.
    max_body
        Largest body of a frame in bytes.

    Raises
    ------
    LinkError
        If an address or a certificate is invalid, or TLS is required but missing.
    ValueError
        If `wire_dtype` is not a wire format, `wire_feedback` is set without rounding, or a switch
        is neither true nor false.
    """

    def __init__(
        self,
        *,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        ca: str | Path | None = None,
        client_ca: str | Path | None = None,
        insecure: bool = False,
        address: str = "127.0.0.1:0",
        advertise: str | None = None,
        wire_dtype: str = "keep",
        wire_dtype_down: str = "",
        wire_feedback: bool = False,
        run: str = "",
        attach_timeout: float = 120.0,
        step_timeout: float = 120.0,
        reattach_timeout: float = 20.0,
        token_seconds: float = 86_400.0,
        max_body: int = MAX_BODY,
    ) -> None:
        super().__init__(
            wire_dtype=wire_dtype,
            wire_dtype_down=wire_dtype_down,
            wire_feedback=wire_feedback,
            run=run,
            attach_timeout=attach_timeout,
            step_timeout=step_timeout,
            reattach_timeout=reattach_timeout,
        )
        self.endpoint = Endpoint(
            address,
            advertise=advertise,
            certificate=certificate,
            key=key,
            ca=ca,
            client_ca=client_ca,
            insecure=insecure,
        )
        self.endpoint.check_names()
        self.max_body = max_body
        self.dialled = ""
        self._mint = TokenMint(token_seconds, "a StreamLink's token_seconds")
        self._service = StreamService(self._mint, self.endpoint.names_nodes)
        self._server: StreamServer | None = None
        self._unread: set[str] = set()

    def open(self, grid: Grid | None) -> None:
        """Start listening.

        Raises
        ------
        LinkError
            If the address cannot be bound.
        """
        self.endpoint.warn_if_private()
        try:
            self._server = StreamServer(
                self._service, self.endpoint.address, self.endpoint.credentials()
            )
        except OSError as error:
            raise LinkError(f"link-address: the stream link {error}") from None
        self.dialled = self.endpoint.dialled(self._server.port)
        tls = "with TLS" if self.endpoint.tls else "in plaintext"
        log.info("stream link: nodes dial %s, %s", self.dialled, tls)

    def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.stop(grace=1.0)
            self._server = None

    @contextmanager
    def round(
        self, grid: Grid | None, messages: Sequence[Message], observe: Observe | None = None
    ) -> Iterator[Clients]:
        """Have the nodes connect; at the end ask them to finish and collect their replies."""
        grid = self.required_grid(grid)
        changes: Changes = queue.SimpleQueue()
        seats = [self._seat(message, changes) for message in messages]
        self._service.open({seat.admission: seat.line for seat in seats})
        mail: Mail | None = None
        try:
            mail = Mail(grid, messages, self._unread)
            descriptions, failures = self._attach(grid, mail, seats, changes)
            clients = StreamClients(
                seats[0].admission.server_round if seats else 0,
                descriptions,
                failures,
                observe,
                lines={seat.client: seat.line for seat in seats},
                changes=changes,
                wire_dtype=self.wire_dtype_down,
                step_timeout=self.step_timeout,
                reattach_timeout=self.reattach_timeout,
            )
            yield clients
            for client in clients.alive:
                clients.lines[client].end("finish")
            if seats and seats[0].admission.kind == "train":
                remaining = {s.client: s.node for s in seats if s.client not in clients.failures}
                clients.replies = collect(grid, mail, remaining, clients.fail, self.attach_timeout)
        finally:
            if mail is not None:
                self._unread = mail.unread
                self.warn_of_metrics([*mail.replies.values(), *mail.earlier_replies])
            for seat in seats:
                seat.line.end("leave", "the ServerApp has ended the round")
            self._service.close([seat.admission for seat in seats])

    def _seat(self, message: Message, changes: Changes) -> _Seat:
        """Add to a message what its node needs to attach."""
        ticket = Ticket.from_message(message)
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        admission = self._mint.admission(node, ticket.client, ticket.server_round, kind)
        ticket = self.dialling(
            ticket,
            self.dialled,
            self._mint.token(admission),
            tls=self.endpoint.tls,
            ca=self.endpoint.ca,
        )
        message.content = with_record(message.content, ticket.to_record())
        line = Line(
            partial(changes.put, ticket.client),
            self.wire_dtype_down,
            self.max_body,
            derive_seed(ticket.seed, "wire down", ticket.client, ticket.server_round),
            Feedback(self.wire_dtype_down) if self.wire_feedback else None,
        )
        return _Seat(ticket.client, node, admission, line)

    def _attach(
        self, grid: Grid, mail: Mail, seats: Sequence[_Seat], changes: Changes
    ) -> tuple[dict[int, Description], dict[int, str]]:
        """Wait until every node has attached, has reported why not, is gone, or is late.

        Returns
        -------
        By client index, the descriptions of attached clients, and why the others did not attach.
        """
        descriptions: dict[int, Description] = {}
        failures: dict[int, str] = {}
        waiting = {seat.client: seat for seat in seats}
        absence = Absence(grid, mail, self.attach_timeout)
        while waiting:
            next_changes(changes, POLL_SECONDS)
            mail.poll()
            for client, seat in list(waiting.items()):
                line = seat.line
                if line.failure is not None:
                    failures[client] = line.failure
                elif line.description is not None:
                    descriptions[client] = line.description
                elif why := absence.reason(seat.node):
                    failures[client] = why
                else:
                    continue
                del waiting[client]
        for seat in seats:
            if seat.client in failures:
                seat.line.end("leave", one_line(failures[seat.client]))
        return descriptions, failures
