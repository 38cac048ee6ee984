"""The gRPC service that nodes dial: it admits them by token and connects each to its line.

All connections share one thread with an event loop: waking a thousand threads at once, one per
stream, costs more than their work (docs/performance.md, "A thousand nodes").
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

import grpc

from flwr_splitmix.links.stream.call import ClosedLineError, LiveLineError
from flwr_splitmix.links.stream.conversation import Conversation
from flwr_splitmix.links.stream.endpoint import why_not_bound
from flwr_splitmix.links.stream.line import Line
from flwr_splitmix.links.stream.names import node_name
from flwr_splitmix.links.stream.protocol import (
    METHOD,
    NODE_KEY,
    PROTOCOL,
    PROTOCOL_KEY,
    TOKEN_KEY,
    keepalive,
    message_settings,
)
from flwr_splitmix.links.stream.token import Admission, TokenError, TokenMint
from flwr_splitmix.words import one_line

log = logging.getLogger("flwr.splitmix")

MAX_CONNECTIONS = 8192
"""Most open connections, if file descriptors allow."""

MAX_CODER_THREADS = min(os.cpu_count() or 1, 4)
"""Threads that encode and decode large frames."""

IDLE_SECONDS, STRANGER_SECONDS = 10.0, 30.0
"""How long a connection may be without a stream, and how long it may open new ones. A node opens
one stream, with its token, as soon as it is connected, and keeps it for the whole round."""

MANY_CONNECTIONS = 100
"""Number of connections in a round at which a client is named in the log."""

FAREWELL_SECONDS = 1.0
"""Seconds that a node has to read that it is cut off."""


class StreamService(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Lets nodes attach; refuses everything else.

    Tokens are checked before the first frame is read, so a peer without one cannot make this
    process accept or decode a byte of a frame.

    Parameters
    ----------
    mint
        Checks the tokens.
    names_nodes
        Whether a node's TLS certificate must name the node.
    """

    def __init__(self, mint: TokenMint, names_nodes: bool = False) -> None:
        self._mint = mint
        self._names_nodes = names_nodes
        self._lines: dict[Admission, Line] = {}
        self._lock = threading.Lock()
        self._handler = grpc.stream_stream_rpc_method_handler(self._attach)

    def open(self, lines: Mapping[Admission, Line]) -> None:
        """Let the nodes of a round attach."""
        with self._lock:
            self._lines.update(lines)

    def close(self, admissions: Iterable[Admission]) -> None:
        """Stop letting the nodes of a round attach."""
        with self._lock:
            for admission in admissions:
                self._lines.pop(admission, None)

    def service(self, handler_call_details: Any) -> Any:
        """Return gRPC's handler of a method, None for an unknown one."""
        return self._handler if handler_call_details.method == METHOD else None

    async def _attach(self, requests: Any, context: Any) -> None:
        stream = Conversation(context)
        line = await self._admit(context, stream)
        try:
            await stream.converse(line)
        except (EOFError, grpc.aio.InternalError):
            return  # the node closed the connection, or it broke; the line knows
        except asyncio.CancelledError:
            if not stream.cut:
                raise
        finally:
            stream.end()
            line.disconnect(stream)
        if stream.cut:
            # A node that is gone or does not read must not hold up this coroutine.
            with contextlib.suppress(TimeoutError, grpc.aio.InternalError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await context.abort(grpc.StatusCode.CANCELLED, "cut off by the ServerApp")

    async def _admit(self, context: Any, stream: Conversation) -> Line:
        shown = dict(context.invocation_metadata())
        protocol = shown.get(PROTOCOL_KEY)
        if protocol != str(PROTOCOL):
            await _refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the ServerApp speaks version {PROTOCOL} of the stream link, "
                f"this node {_short(protocol)}; install the same flwr-splitmix on both",
            )
        try:
            admission = self._mint.check(str(shown.get(TOKEN_KEY, "")))
        except TokenError as error:
            await _refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        if shown.get(NODE_KEY) != str(admission.node):
            await _refuse(
                context, grpc.StatusCode.PERMISSION_DENIED, "the token was made for another node"
            )
        names = certified_names(context) if self._names_nodes else set()
        if self._names_nodes and node_name(admission.client) not in names:
            await _refuse(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"the node shows a certificate of {_listed(names)}, but it is client "
                f"{admission.client}: its ssl-certfile must name {node_name(admission.client)}",
            )
        with self._lock:
            line = self._lines.get(admission)
        if line is None:
            await _refuse(
                context,
                grpc.StatusCode.NOT_FOUND,
                f"round {admission.server_round} ({admission.kind}) is over",
            )
        try:
            line.connect(stream)
        except LiveLineError:
            await _refuse(
                context,
                grpc.StatusCode.ALREADY_EXISTS,
                "another connection with this token stands",
            )
        except ClosedLineError as error:
            await _refuse(context, grpc.StatusCode.ABORTED, f"left out of the round: {error}")
        if line.connections == MANY_CONNECTIONS:
            log.warning(
                "client %d has connected %d times in round %d: a bad network, or an attack",
                admission.client,
                MANY_CONNECTIONS,
                admission.server_round,
            )
        return line


async def _refuse(context: Any, code: grpc.StatusCode, sentence: str) -> NoReturn:
    await context.abort(code, sentence)
    raise AssertionError("abort raises")


def certified_names(context: Any) -> set[str]:
    """Return the names in a connection's client certificate."""
    shown = context.auth_context()
    kinds = ("x509_common_name", "x509_subject_alternative_name")
    return {name.decode(errors="replace") for kind in kinds for name in shown.get(kind, ())}


def _listed(names: set[str]) -> str:
    return one_line(", ".join(sorted(names)))[:100] or "no name"


def _short(value: Any) -> str:
    return str(value)[:16] if str(value)[:16].isalnum() else "an unknown one"


class StreamServer:
    """A gRPC server for the nodes' service, and optionally others, on one address.

    Parameters
    ----------
    address
        "host:port" to listen on; port 0 takes a free one.
    credentials
        gRPC's server credentials; None for plaintext.
    others
        Further services at the same address.

    Raises
    ------
    OSError
        If the address cannot be bound.
    """

    def __init__(
        self,
        service: StreamService,
        address: str,
        credentials: grpc.ServerCredentials | None,
        *others: grpc.GenericRpcHandler,
    ) -> None:
        self._services = (service, *others)
        self._address = address
        self._credentials = credentials
        self._loop = asyncio.new_event_loop()
        self._bound: Future[int] = Future()
        self._grace: asyncio.Future[float] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="splitmix-stream", daemon=True)
        self._thread.start()
        try:
            self.port = self._bound.result()
        except RuntimeError:  # gRPC's, if the address cannot be bound
            self.port = 0
        if not self.port:
            self._thread.join()
            raise OSError(f"cannot listen on {address}: {why_not_bound(address)}")

    def stop(self, grace: float) -> None:
        """Refuse new connections, cut open ones after `grace` seconds, and end all threads."""
        self._loop.call_soon_threadsafe(self._grace.set_result, grace)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve())
            except Exception as error:
                if self._bound.done():
                    raise
                self._bound.set_exception(error)

    async def _serve(self) -> None:
        coders = ThreadPoolExecutor(MAX_CODER_THREADS, thread_name_prefix="splitmix-stream-coder")
        self._loop.set_default_executor(coders)
        server = grpc.aio.server(options=_options())
        server.add_generic_rpc_handlers(self._services)
        if self._credentials is None:
            port = server.add_insecure_port(self._address)
        else:
            port = server.add_secure_port(self._address, self._credentials)
        if port:
            await server.start()
        self._bound.set_result(port)
        if port:
            await server.stop(await self._grace)


def max_connections() -> int:
    """Return the limit of open connections; it leaves a quarter of the descriptors for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, soft * 3 // 4))


def _options() -> list[tuple[str, int]]:
    return [
        *message_settings(),
        *keepalive(),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.server_handshake_timeout_ms", 10_000),
        # A peer without a valid token has no lasting stream, and is cut off.
        ("grpc.max_connection_idle_ms", int(1000 * IDLE_SECONDS)),
        ("grpc.max_connection_age_ms", int(1000 * STRANGER_SECONDS)),
        ("grpc.max_allowed_incoming_connections", max_connections()),
        ("grpc.so_reuseport", 0),
        # Nodes send keepalive pings just as often.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]
