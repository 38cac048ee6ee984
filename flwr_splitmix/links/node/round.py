"""A round on a SuperNode: build the client, serve the server's calls, answer the message."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from flwr_splitmix.clients import Client
from flwr_splitmix.description import NodeDescription
from flwr_splitmix.files.home import expanded
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.links.errors import is_unexpected, own_sentence, public_sentence
from flwr_splitmix.links.host import ClientHost, build
from flwr_splitmix.links.link import LinkError, Outcome
from flwr_splitmix.links.node.audit import SUPERLINK, AuditLog
from flwr_splitmix.links.node.given import OriginStore, digest_of_instructions
from flwr_splitmix.links.node.guards import NodeGuards, rejection_log
from flwr_splitmix.links.node.pinned import pinned
from flwr_splitmix.links.node.plaintext import check_plaintext
from flwr_splitmix.links.node.state import open_store
from flwr_splitmix.links.stream.pairs import CERTIFICATE, KEY
from flwr_splitmix.links.stream.session import ClientIdentity, Session
from flwr_splitmix.links.ticket import RECORD, Ticket, arrays_of, context_of, release_content

log = logging.getLogger("flwr.splitmix")


NOT_SIMULATED = "this node is a real one, and link 'ray' is for simulations: use 'stream' or 'auto'"
"""Its guards are those of the stream, so nothing may pass beside it."""


def serve_round(
    client_fn: Callable[[Context], Client], message: Message, context: Context
) -> RecordDict:
    """Take part in one round over the stream.

    Returns
    -------
    The content of the reply. After training: metrics and, if the ticket asks for them, arrays.
    After an evaluation: nothing. If the round continues without this client: the reason.

    Raises
    ------
    LinkError
        If the message carries no ticket: its sender is not a strategy of this package, and would
        not read the reason.
    """
    ticket: Ticket | None = None
    guards: NodeGuards | None = None
    try:
        ticket, context = _read(message, context)
        guards = NodeGuards(context, ticket)
        given_orders = digest_of_instructions(
            message.content.config_records[RECORD], context.run_config
        )
        ticket = pinned(ticket, context.node_config)
        check_plaintext(ticket, context, guards.policy)
        arrays = arrays_of(message.content)
        run_store = open_store(ticket.run, ticket.state_key, context)
        store = OriginStore(run_store, arrays, ticket, trains=guards.policy.trains)
        host = ClientHost(store, public_sentence)
        make = partial(guards.build, partial(build, client_fn, context, public_sentence))
        description = host.attach(ticket, make, arrays)
        description |= NodeDescription(
            given_weights=store.origin, given_orders=given_orders, allow_training=store.trains
        ).to_plain()
        guards.audit.write("attach", description)
        if message.metadata.message_type != "train":
            with _keeping(host, ticket):
                _serve(host, ticket, context, description, guards)
            return RecordDict()
        with _keeping(host, ticket, only_if_it_fails=True):
            _serve(host, ticket, context, description, guards)
        returned, metrics, warning = host.finish(ticket)
        metrics = guards.reported(metrics)
        released = {"lower-segment": returned, "metrics": dict(metrics)}
        guards.audit.write("release", released, to=SUPERLINK)
    except Exception as error:
        # The server gets one line; a traceback is logged here if it has more.
        where = "" if ticket is None else f"client {ticket.client}, round {ticket.server_round}: "
        if is_unexpected(error):
            log.exception("%sthis node has failed", where)
        else:
            log.warning("%s%s", where, own_sentence(error))
        reason = public_sentence(error)
        reply = refuse_round(message, context, reason, None if guards is None else guards.audit)
        if RECORD not in message.content.config_records:
            raise
        return reply
    if warning:
        log.warning("%s", warning)
    return release_content(to_arrays(returned), metrics, warning)


def refuse_round(
    message: Message, context: Context, why: str, audit: AuditLog | None = None
) -> RecordDict:
    """Log that this node takes no part in a round, or no more; return the content of the reply.

    Parameters
    ----------
    audit
        The node's log, if the round has got so far that it is open.
    """
    if (audit := audit or rejection_log(message, context)) is not None:
        with contextlib.suppress(LinkError):  # a full disk: the answer says so, or says more
            audit.refuse("round", why)
    return RecordDict({RECORD: ConfigRecord({"error": why})})


def _read(message: Message, context: Context) -> tuple[Ticket, Context]:
    """Return a message's ticket, and the context with its configuration.

    Raises
    ------
    LinkError
        If either is invalid, or a real node does not know the ticket's link.
    """
    try:
        ticket = Ticket.from_message(message)
        context = context_of(ticket, context)
    except ValueError as error:
        raise LinkError(str(error)) from None
    if ticket.link == "ray":
        raise LinkError(NOT_SIMULATED)
    if ticket.link != "stream":
        raise LinkError(f"this node knows no link {ticket.link[:40]!r}; allowed: 'ray', 'stream'")
    return ticket, context


def _serve(
    host: ClientHost,
    ticket: Ticket,
    context: Context,
    description: Mapping[str, Any],
    guards: NodeGuards,
) -> None:
    def answer(method: str, arguments: Mapping[str, Any]) -> Outcome:
        def ask() -> Outcome:
            return host.call(method, {ticket.client: arguments})[ticket.client]

        return guards.answer(method, arguments, ask)

    Session(ticket, context.node_id, description, answer, _identity(context)).run()


@contextmanager
def _keeping(host: ClientHost, ticket: Ticket, *, only_if_it_fails: bool = False) -> Iterator[None]:
    """Save the client's state if it changed, even if the round continues without the client."""
    failed = True
    try:
        yield
        failed = False
    finally:
        if (failed or not only_if_it_fails) and (warning := host.keep_if_changed(ticket)):
            log.warning("%s", warning)


def _identity(context: Context) -> ClientIdentity | None:
    certificate, key = (context.node_config.get(name) for name in (CERTIFICATE, KEY))
    if certificate is None and key is None:
        return None
    if not certificate or not key:
        raise LinkError(f"a node's {CERTIFICATE} and {KEY} must be given together")
    return ClientIdentity(
        expanded(str(certificate), CERTIFICATE, LinkError), expanded(str(key), KEY, LinkError)
    )
