"""The mixer's end of a ServerApp's stream: admission by token, and one reply per call."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import grpc

from flwr_splitmix.links.frames.codec import Frame, decode
from flwr_splitmix.links.frames.payload import CodecError
from flwr_splitmix.links.mixer.protocol import METHOD, PROTOCOL, PROTOCOL_KEY, TOKEN_KEY
from flwr_splitmix.links.stream.names import names_node
from flwr_splitmix.links.stream.protocol import PartialFrame, in_pieces
from flwr_splitmix.links.stream.server import certified_names

log = logging.getLogger("flwr.splitmix")

SMALL_CALL = 2**20
"""Largest body in bytes of a call without gradients."""

MAX_STREAMS = 64
"""Most ServerApps served at once; each takes a thread and a round's mixtures."""


class RefusedError(ValueError):
    """The mixer refuses a ServerApp's call; the message is sent to the ServerApp."""


class Room(Protocol):
    """The interface that answers the calls of one stream and mixes its round.

    Attributes
    ----------
    longest_call
        Largest body of the next call in bytes.
    """

    longest_call: int

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the reply to a call; raise RefusedError to refuse it."""

    def leave(self) -> None:
        """End the round for all its nodes, unless it has ended; may be called from any thread."""


class MixerService(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers ServerApps that show the mixer's token.

    Parameters
    ----------
    token
        The mixer's token; compared in constant time, before the first frame is read.
    make_room
        Makes the room of a new stream.
    names_nodes
        Whether nodes must show a certificate that names them; then a ServerApp's may name none.
    """

    def __init__(
        self, token: str, make_room: Callable[[], Room], *, names_nodes: bool = False
    ) -> None:
        self._token = token.encode()
        self._names_nodes = names_nodes
        self._make_room = make_room
        self._streams = 0
        self._strangers = 0
        self._handler = grpc.stream_stream_rpc_method_handler(self._serve)

    def service(self, handler_call_details: Any) -> Any:
        """Return gRPC's handler of a method, None for an unknown one."""
        return self._handler if handler_call_details.method == METHOD else None

    async def _serve(self, requests: Any, context: Any) -> None:
        await self._admit(context)
        loop = asyncio.get_running_loop()
        room = self._make_room()
        # Calls wait for nodes, so they run in a thread: the event loop serves all nodes.
        thread = ThreadPoolExecutor(1, thread_name_prefix="splitmix-mixer")
        # Counted before any other stream is admitted: nothing is awaited in between.
        self._streams += 1
        try:
            await context.send_initial_metadata(())
            number = 0
            while (pieces := await self._frame(context, room.longest_call)) is not None:
                number += 1
                reply = await loop.run_in_executor(thread, self._reply, room, number, pieces)
                for message in reply:
                    await context.write(message)
        except grpc.aio.InternalError:
            log.warning("the connection to a ServerApp broke")
        finally:
            self._streams -= 1
            room.leave()
            thread.shutdown(wait=False)

    async def _admit(self, context: Any) -> None:
        shown = dict(context.invocation_metadata())
        if shown.get(PROTOCOL_KEY) != str(PROTOCOL):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the mixer speaks version {PROTOCOL} of its protocol, and the ServerApp another; "
                "install the same flwr-splitmix on both",
            )
        if not hmac.compare_digest(str(shown.get(TOKEN_KEY, "")).encode(), self._token):
            self._strangers += 1
            if not self._strangers & (self._strangers - 1):  # 1, 2, 4, ...: no flood of the log
                log.warning(
                    "%s was turned away: it does not have the mixer's token (number %d)",
                    context.peer(),
                    self._strangers,
                )
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "this is not the mixer's token (link-via-token)"
            )
        if self._names_nodes and (
            node_names := sorted(filter(names_node, certified_names(context)))
        ):
            log.warning(
                "a ServerApp was turned away: it shows the certificate of %s", node_names[0]
            )
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"this run shows the certificate of {node_names[0]} (ssl-certfile), with which it "
                "could pretend to be that node: give it one that names no node",
            )
        if self._streams >= MAX_STREAMS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"the mixer has {MAX_STREAMS} rounds in hand"
            )

    async def _frame(self, context: Any, max_body: int) -> list[bytes] | None:
        """Read a frame; return None if the ServerApp has ended its stream."""
        frame = PartialFrame(max_body)
        while True:
            message = await context.read()
            if message is grpc.aio.EOF:
                return None
            if frame.add(message):
                return frame.pieces

    def _reply(self, room: Room, number: int, pieces: Sequence[bytes]) -> list[bytes]:
        try:
            call = decode(pieces, room.longest_call)
            if call.kind != "call" or call.number != number:
                raise RefusedError(f"expected call {number}")
            return in_pieces(Frame("reply", number, payload=room.answer(call.text, call.payload)))
        except (RefusedError, CodecError) as error:
            log.warning("a ServerApp was refused: %s", error)
            return in_pieces(Frame("error", number, str(error)))
        except Exception:
            log.exception("the mixer failed in call %d of a ServerApp", number)
            return in_pieces(Frame("error", number, "the mixer failed; its log says why"))
