"""The gRPC service that nodes dial: it admits them by token and joins each to its line."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc

from flwr_splitmix.links.frames.codec import Frame, encode
from flwr_splitmix.links.stream.certificates import node_name
from flwr_splitmix.links.stream.line import ClosedLineError, Line, LiveLineError
from flwr_splitmix.links.stream.protocol import (
    METHOD,
    NODE_KEY,
    PROTOCOL,
    PROTOCOL_KEY,
    TOKEN_KEY,
    keepalive,
    message_settings,
    next_frame,
)
from flwr_splitmix.links.stream.token import Admission, TokenError, TokenMint
from flwr_splitmix.links.words import one_line

MAX_NODES = 4096
"""Threads that serve nodes; each is started when it is needed."""

IDLE_SECONDS, STRANGER_SECONDS = 10.0, 30.0
"""How long a connection may be without a stream, and how long it may open new ones. A node opens
one stream, with its token, as soon as it is connected, and keeps it however long the round is."""

_WELCOME = encode(Frame("hello"))


class StreamService(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers the attach of nodes; everything else is refused.

    A token is checked before the first frame is read, so that whoever has none cannot make this
    process take or decode a byte of a frame.

    Parameters
    ----------
    names_nodes
        Whether a node's certificate, which its connection has shown, must name the node.
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
        """Let them no longer."""
        with self._lock:
            for admission in admissions:
                self._lines.pop(admission, None)

    def service(self, handler_call_details: Any) -> Any:
        """Return gRPC's handler of a method, None for an unknown one."""
        return self._handler if handler_call_details.method == METHOD else None

    def _attach(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        line = self._admit(context)
        context.add_callback(lambda: line.disconnect(context))
        try:
            line.hello(context, next_frame(requests, line.longest_body))
            yield _WELCOME
            # Both directions at the same time: replies come in while calls go out.
            threading.Thread(
                target=_listen,
                args=(line, requests, context),
                name="splitmix-stream-replies",
                daemon=True,
            ).start()
            while (following := line.next_frame(context)) is not None:
                messages, last = following
                yield from messages
                if last:
                    return
        except (grpc.RpcError, StopIteration):
            return  # the connection broke, or the node closed it; the line knows
        finally:
            line.disconnect(context)

    def _admit(self, context: Any) -> Line:
        shown = {item.key: item.value for item in context.invocation_metadata()}
        protocol = shown.get(PROTOCOL_KEY)
        if protocol != str(PROTOCOL):
            _refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the ServerApp speaks version {PROTOCOL} of the stream link, "
                f"this node {_short(protocol)}; install the same flwr-splitmix on both",
            )
        try:
            admission = self._mint.check(str(shown.get(TOKEN_KEY, "")))
        except TokenError as error:
            _refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        if shown.get(NODE_KEY) != str(admission.node):
            _refuse(
                context, grpc.StatusCode.PERMISSION_DENIED, "the token was made for another node"
            )
        if self._names_nodes and node_name(admission.client) not in (names := _certified(context)):
            _refuse(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"the node shows a certificate of {_listed(names)}, but it is client "
                f"{admission.client}: its ssl-certfile must name {node_name(admission.client)}",
            )
        with self._lock:
            line = self._lines.get(admission)
        if line is None:
            _refuse(
                context,
                grpc.StatusCode.NOT_FOUND,
                f"round {admission.server_round} ({admission.kind}) is over",
            )
        try:
            line.connect(context)
        except LiveLineError:
            _refuse(
                context,
                grpc.StatusCode.ALREADY_EXISTS,
                "another connection with this token stands",
            )
        except ClosedLineError as error:
            _refuse(context, grpc.StatusCode.ABORTED, f"left out of the round: {error}")
        return line


def _listen(line: Line, requests: Iterator[bytes], context: Any) -> None:
    """Take a connection's replies, as long as there are calls to be answered."""
    try:
        while line.awaits(context):
            line.receive(context, next_frame(requests, line.longest_body))
    except (grpc.RpcError, StopIteration):
        line.disconnect(context)


def _refuse(context: Any, code: grpc.StatusCode, sentence: str) -> NoReturn:
    context.abort(code, sentence)
    raise AssertionError("abort raises")


def _certified(context: Any) -> set[str]:
    """Return the names that a connection's certificate is made for."""
    shown = context.auth_context()
    kinds = ("x509_common_name", "x509_subject_alternative_name")
    return {name.decode(errors="replace") for kind in kinds for name in shown.get(kind, ())}


def _listed(names: set[str]) -> str:
    return one_line(", ".join(sorted(names)))[:100] or "no name"


def _short(value: Any) -> str:
    return str(value)[:16] if str(value)[:16].isalnum() else "an unknown one"


class StreamServer:
    """A gRPC server with one service, on one address.

    Parameters
    ----------
    address
        "host:port" to listen on; port 0 takes a free one.
    credentials
        gRPC's server credentials; None for plaintext.

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
    ) -> None:
        self._threads = ThreadPoolExecutor(MAX_NODES, thread_name_prefix="splitmix-stream")
        self._server = grpc.server(self._threads, options=_options())
        self._server.add_generic_rpc_handlers((service,))
        try:
            if credentials is None:
                self.port = int(self._server.add_insecure_port(address))
            else:
                self.port = int(self._server.add_secure_port(address, credentials))
        except RuntimeError:
            self.port = 0
        if not self.port:
            self._threads.shutdown()
            raise OSError(f"cannot listen on {address}")
        self._server.start()

    def stop(self, grace: float) -> None:
        """Refuse new connections, cut those that stand after `grace` seconds, end all threads."""
        self._server.stop(grace).wait()
        self._threads.shutdown()


def max_connections() -> int:
    """Return how many connections may stand at once: a quarter of the descriptors is for files."""
    if sys.platform == "win32":
        return 2 * MAX_NODES
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2 * MAX_NODES
    return max(1, min(2 * MAX_NODES, soft * 3 // 4))


def _options() -> list[tuple[str, int]]:
    return [
        *message_settings(),
        *keepalive(),
        ("grpc.max_metadata_size", 16 * 1024),
        ("grpc.server_handshake_timeout_ms", 10_000),
        # Whoever has shown no token has no stream that lasts, and is cut off.
        ("grpc.max_connection_idle_ms", int(1000 * IDLE_SECONDS)),
        ("grpc.max_connection_age_ms", int(1000 * STRANGER_SECONDS)),
        ("grpc.max_allowed_incoming_connections", max_connections()),
        ("grpc.so_reuseport", 0),
        # Nodes look after their end of the connection just as often.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]
