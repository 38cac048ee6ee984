"""The node's end of a line: dial, answer calls until the server ends the round, redial if lost."""

from __future__ import annotations

import logging
import queue
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import grpc

from flwr_splitmix.links.frames.codec import MAX_BODY, Frame, decode
from flwr_splitmix.links.frames.payload import CodecError
from flwr_splitmix.links.frames.wire import WireDtype, check_wire_dtype
from flwr_splitmix.links.link import LinkError, Outcome
from flwr_splitmix.links.stream.dialling import dial, proxy_variable
from flwr_splitmix.links.stream.pairs import CERTIFICATE, KEY, read_pair
from flwr_splitmix.links.stream.protocol import (
    MAX_UNHEARD,
    METHOD,
    NODE_KEY,
    NOTICE_SECONDS,
    PROTOCOL,
    PROTOCOL_KEY,
    REPLY_HEADER,
    TOKEN_KEY,
    in_pieces,
    next_frame,
)
from flwr_splitmix.links.stream.silence import SilenceLimit
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.seeding import derive_seed
from flwr_splitmix.words import one_line

log = logging.getLogger("flwr.splitmix")

Answer = Callable[[str, Mapping[str, Any]], Outcome]
"""Runs one exchange: (method, arguments) -> outcome."""

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 1.0
"""Seconds between two attempts to dial; they double each time, with 25 % jitter."""

MAX_SILENCE_SECONDS = 6 * 3600.0
"""Seconds that a ServerApp may leave an attached node without a message. It sends none while it
waits for others, which may take as long as an evaluation, an hour, nor to a node whose privacy
budget is spent, until the round ends."""

RETRIED_CODES = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.ALREADY_EXISTS,  # the server has not noticed that the old connection broke
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
"""Statuses that may be temporary; any other is final."""


NO_MESSAGE = "no message came from it"

UNREACHED_ERRORS = (
    "Failed to connect to remote host",
    "tcp handshaker shutdown",
    "errors resolving",
    "DNS resolution failed",
    NO_MESSAGE,
)
"""Parts of gRPC's errors if nothing answered at an address: refused, dropped, or of an unknown name
(gRPC has two forms of that), or if something else did."""

UNTRUSTED_ERRORS = ("CERTIFICATE_VERIFY_FAILED", "BAD_SIGNATURE")
"""Parts of its errors if this node does not trust the authority of the server's certificate."""


class _SilentError(Exception):
    """The server keeps the connection, answers pings and sends nothing."""


@dataclass(frozen=True)
class ClientIdentity:
    """PEM files of a node's own certificate and key, for a server that asks for one."""

    certificate: Path
    key: Path


class Session:
    """One client's round over the stream.

    Parameters
    ----------
    ticket
        Where to dial, and the token.
    node
        Flower's id of this node, for which the token was made.
    description
        The client's description of itself.
    answer
        Runs an exchange.
    identity
        This node's own certificate, if the server asks for one.
    max_body
        Largest body of a frame in bytes, and the bytes of replies to store before the server has
        acknowledged one.
    """

    def __init__(
        self,
        ticket: Ticket,
        node: int,
        description: Mapping[str, Any],
        answer: Answer,
        identity: ClientIdentity | None = None,
        max_body: int = MAX_BODY,
    ) -> None:
        self._ticket = ticket
        self._node = node
        self._description = description
        self._answer = answer
        self._identity = identity
        self._pair: tuple[bytes, bytes] | None = None
        self._max_body = max_body
        self._wire: WireDtype = check_wire_dtype(ticket.wire_dtype)
        self._seed = derive_seed(ticket.seed, "wire up", ticket.client, ticket.server_round)
        self._jitter = random.Random()
        self._number = 0
        self._replies: dict[int, list[bytes]] = {}
        self._attached = self._was_attached = False

    def run(self) -> None:
        """Serve calls until the server finishes the round.

        Raises
        ------
        LinkError
            If the server refuses this client, leaves it out of the round, cannot be reached within
            the ticket's limits, sends nothing for `MAX_SILENCE_SECONDS`, or violates the protocol;
            or if this node's own certificate is invalid; the message may be sent to the server.
        """
        if self._identity is not None:
            self._pair = read_pair(self._identity.certificate, self._identity.key)
        pause, since, patience = FIRST_PAUSE_SECONDS, time.monotonic(), self._ticket.timeout
        noticed = since
        while True:
            is_held = False
            try:
                with self._dial() as channel:
                    if self._converse(channel, patience):
                        return
                reason = "the server closed the connection"
            except _SilentError:
                if self._attached:
                    raise LinkError(
                        f"the ServerApp at {self._ticket.address} sent nothing for "
                        f"{MAX_SILENCE_SECONDS / 3600:g} h and kept the connection; its log may "
                        "say why"
                    ) from None
                reason = NO_MESSAGE
            except grpc.RpcError as error:
                reason = one_line(error.details() or error.code().name)
                if error.code() not in RETRIED_CODES:
                    raise LinkError(reason) from None
                is_held = error.code() is grpc.StatusCode.ALREADY_EXISTS
            if self._attached:
                self._attached, self._was_attached = False, True
                pause, since, patience = (
                    FIRST_PAUSE_SECONDS,
                    time.monotonic(),
                    self._ticket.patience,
                )
                noticed = since + NOTICE_SECONDS
            elif is_held and time.monotonic() < noticed:
                since = time.monotonic()  # the server is there, and holds the broken connection
            elif time.monotonic() + pause > since + patience:
                raise LinkError(
                    f"could not reach the ServerApp at {self._ticket.address} within "
                    f"{patience:g} s: {reason}{self._hint(reason)}"
                )
            log.info("dialling %s again: %s", self._ticket.address, reason)
            time.sleep(pause * self._jitter.uniform(0.75, 1.25))
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    def _hint(self, reason: str) -> str:
        """Return the remedy, by why no connection came about; "" if none is known."""
        hint = self._hint_at_ends(reason)
        if proxy := proxy_variable(tls=self._ticket.tls):
            hint += f". This node dials through its {proxy}, unless no_proxy names the server"
        return hint

    def _hint_at_ends(self, reason: str) -> str:
        if any(phrase in reason for phrase in UNREACHED_ERRORS):
            if self._was_attached:
                return ". It was reached before: the ServerApp may have ended, and its log says why"
            return (
                ". Check link-advertise and link-address of the run (with a mixer, link-via), and "
                "the firewalls on the way"
            )
        if any(phrase in reason for phrase in UNTRUSTED_ERRORS):
            if not self._ticket.ca:
                return (
                    ". The run's ssl-ca-certfile is not set (with a mixer, the node's "
                    "link-via-ca), so that public authorities only are trusted: set it to the "
                    "authority of the link's certificate"
                )
            return (
                ". The link's certificate is from another authority than the run's ssl-ca-certfile "
                "(with a mixer, the node's link-via-ca)"
            )
        if not self._ticket.tls or self._pair is not None or self._was_attached:
            return ""
        return (
            f". This node shows no certificate: if the run asks for one (link-client-ca), set "
            f"{CERTIFICATE} and {KEY} in its --node-config"
        )

    def _dial(self) -> grpc.Channel:
        # Each attempt is a connection of its own, and `run` paces the attempts.
        ticket = self._ticket
        return dial(ticket.address, tls=ticket.tls, ca=ticket.ca.encode(), pair=self._pair)

    def _converse(self, channel: grpc.Channel, patience: float) -> bool:
        """Answer the calls of one connection; return whether the round is finished.

        Parameters
        ----------
        patience
            Seconds to wait for the server's first message.
        """
        outbox: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        outbox.put(in_pieces(Frame("hello", self._number, payload=self._description)))
        stream: Iterator[bytes] = channel.stream_stream(METHOD)(
            chain.from_iterable(iter(outbox.get, None)),
            metadata=(
                (TOKEN_KEY, self._ticket.token),
                (NODE_KEY, str(self._node)),
                (PROTOCOL_KEY, str(PROTOCOL)),
            ),
        )
        try:
            with SilenceLimit(patience, stream.cancel) as limit:  # type: ignore[attr-defined]
                messages = limit.awaited(stream)
                while True:
                    data = next_frame(messages, self._max_body)
                    self._attached, limit.seconds = True, MAX_SILENCE_SECONDS
                    frame = self._decode(data)
                    if frame.kind == "finish":
                        return True
                    if frame.kind == "leave":
                        raise LinkError(f"left out of the round: {one_line(frame.text)}")
                    if frame.kind == "call" and (reply := self._reply_to(frame)) is not None:
                        outbox.put(reply)
        except StopIteration:
            return False  # the server ended the stream without a word
        except grpc.RpcError:
            if limit.exceeded:
                raise _SilentError from None
            raise
        finally:
            outbox.put(None)
            stream.cancel()  # type: ignore[attr-defined]

    def _decode(self, data: list[bytes]) -> Frame:
        try:
            return decode(data, self._max_body)
        except CodecError as error:
            raise LinkError(
                one_line(f"the server sent bytes that are not a frame: {error}")
            ) from None

    def _reply_to(self, call: Frame) -> list[bytes] | None:
        """Run a call, or return its stored reply; None if that reply has been dropped."""
        answered, arguments = call.payload.get("answered"), call.payload.get("arguments")
        if type(answered) is not int or not isinstance(arguments, dict):
            raise LinkError("the server sent a call without its arguments")
        for number in [number for number in self._replies if number <= answered]:
            del self._replies[number]
        if call.number <= self._number:
            return self._replies.get(call.number)
        if call.number > self._number + 1:
            raise LinkError(f"the server sent call {call.number} after {self._number}")
        if len(self._replies) >= MAX_UNHEARD:
            raise LinkError(f"the server made {MAX_UNHEARD} calls without acknowledging a reply")
        stored = sum(len(piece) for reply in self._replies.values() for piece in reply)
        if stored > self._max_body:
            raise LinkError(
                f"the server made calls without acknowledging replies of {stored} bytes; a node "
                f"stores {self._max_body}, so a batch in parts must be smaller"
            )
        outcome = self._answer(call.text, arguments)
        self._number = call.number
        self._replies[self._number] = self._encoded(call.number, outcome)
        return self._replies[self._number]

    def _encoded(self, number: int, outcome: Outcome) -> list[bytes]:
        error = outcome.error
        if outcome.reply is not None:
            try:
                frame = Frame("reply", number, payload=outcome.reply)
                return in_pieces(frame, self._wire, self._max_body, self._seed, REPLY_HEADER)
            except CodecError as refused:
                error = f"its reply cannot travel: {refused}"
        return in_pieces(Frame("error", number, error or "no reply"))
