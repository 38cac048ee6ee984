"""An echo over a bare gRPC stream with TLS: what the link is measured against.

As the link's, the stream is dialled by the clients, carries raw bytes, and has one message in
flight; nothing reads, checks or copies these bytes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

METHOD = "/benchmark.Echo/Attach"
CLIENT_KEY = "client"
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class BareEcho(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The server's end.

    Parameters
    ----------
    clients
        Indices of those that will dial.
    certificate, key
        PEM files.
    """

    def __init__(self, clients: Sequence[int], certificate: Path, key: Path) -> None:
        self._outboxes = {client: queue.SimpleQueue[bytes | None]() for client in clients}
        self._inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server = grpc.server(ThreadPoolExecutor(len(clients)), options=UNLIMITED)
        self._server.add_generic_rpc_handlers((self,))
        pair = (key.read_bytes(), certificate.read_bytes())
        credentials = grpc.ssl_server_credentials([pair])
        self.address = f"127.0.0.1:{self._server.add_secure_port('127.0.0.1:0', credentials)}"
        self._server.start()

    def service(self, handler_call_details: Any) -> Any:
        """Return gRPC's handler."""
        return self._handler

    def _serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        shown = {item.key: item.value for item in context.invocation_metadata()}
        outbox = self._outboxes[int(shown[CLIENT_KEY])]
        while (data := outbox.get()) is not None:
            yield data
            self._inbox.put(next(requests))

    def echo(self, data: bytes, clients: Sequence[int]) -> None:
        """Send bytes to some clients at once, and wait until they are all back."""
        for client in clients:
            self._outboxes[client].put(data)
        for _ in clients:
            assert len(self._inbox.get(timeout=60)) == len(data)

    def stop(self) -> None:
        """End all streams."""
        for outbox in self._outboxes.values():
            outbox.put(None)
        self._server.stop(grace=1.0).wait()


def answer_in_background(address: str, ca: bytes, client: int) -> None:
    """Dial the server and return all that it sends, until it ends the stream."""

    def answer() -> None:
        credentials = grpc.ssl_channel_credentials(root_certificates=ca)
        outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        with grpc.secure_channel(address, credentials, options=UNLIMITED) as channel:
            stream = channel.stream_stream(METHOD)(
                iter(outbox.get, None), metadata=((CLIENT_KEY, str(client)),)
            )
            for data in stream:
                outbox.put(data)
            outbox.put(None)  # type: ignore[arg-type]

    threading.Thread(target=answer, daemon=True).start()
