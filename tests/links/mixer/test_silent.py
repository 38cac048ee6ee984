"""A mixer that admits a ServerApp, keeps the connection, and does not answer its calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
import torch

from flwr_splitmix.links import LinkError
from flwr_splitmix.links.frames.codec import Frame, encode
from flwr_splitmix.links.link import RoundLostError
from flwr_splitmix.links.mixer import channel
from flwr_splitmix.links.mixer.channel import MixerAddress, MixerChannel
from flwr_splitmix.links.stream.protocol import PIECE_BYTES, in_pieces
from tests.links.mixer.third_party import TOKEN


class Silent(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers some calls, and then none until it is released."""

    def __init__(self) -> None:
        self.answers, self.ahead = 0, 0
        self.kind: Any = "reply"
        self.released = threading.Event()

    def service(self, handler_call_details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self.serve)

    def serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for number in range(1, self.answers + 1):
            next(requests)
            yield encode(Frame(self.kind, number + self.ahead))
        self.released.wait()


@contextmanager
def served(handler: Silent) -> Iterator[str]:
    """Serve at an address of this machine."""
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    handler.released.set()
    server.stop(0).wait()


@pytest.fixture
def silent() -> Iterator[tuple[Silent, str]]:
    handler = Silent()
    with served(handler) as address:
        yield handler, address


@pytest.mark.timeout(60)
@pytest.mark.parametrize("answers", [0, 1])
def test_a_silent_mixer_does_not_hold_the_run_forever(
    silent: tuple[Silent, str], answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_SILENCE_SECONDS", 4.0)
    handler, address = silent
    handler.answers = answers
    stream = MixerChannel(MixerAddress(address, tls=False, token=TOKEN), 60.0, 0.5)
    try:
        if answers:
            assert stream.open({}) == {}
            with pytest.raises(RoundLostError, match="is gone: it did not answer 'begin' within"):
                stream.ask("begin")
        else:
            with pytest.raises(LinkError, match=r"did not answer 'open' within 4\.5 s"):
                stream.open({})
    finally:
        stream.close()


class Slow(Silent):
    """Sends its one reply in pieces, with pauses between them."""

    def serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        next(requests)
        for piece in in_pieces(
            Frame("reply", 1, payload={"tensor": torch.zeros(7 * PIECE_BYTES // 4)})
        ):
            yield piece
            self.released.wait(0.5)


@pytest.mark.timeout(60)
def test_a_reply_in_pieces_may_take_no_longer_than_one_that_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "MAX_SILENCE_SECONDS", 1.0)
    with served(Slow()) as address:
        stream = MixerChannel(MixerAddress(address, tls=False, token=TOKEN), 60.0)
        with pytest.raises(LinkError, match=r"did not answer 'open' within 1 s"):
            stream.open({})
        stream.close()


def test_a_call_costs_no_thread(
    silent: tuple[Silent, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even to hang up if it takes too long."""
    started: list[str] = []

    class Noted(threading.Thread):
        def start(self) -> None:
            started.append(type(self).__name__)
            super().start()

    class NotedTimer(Noted, threading.Timer):
        pass

    handler, address = silent
    handler.answers = 4
    monkeypatch.setattr(threading, "Thread", Noted)
    monkeypatch.setattr(threading, "Timer", NotedTimer)
    stream = MixerChannel(MixerAddress(address, tls=False, token=TOKEN), 60.0)
    stream.open({})
    started.clear()
    for _ in range(3):
        stream.ask("step")
    stream.close()
    assert started == []


@pytest.mark.parametrize(("kind", "ahead"), [("reply", 1), ("call", 0)])
def test_what_answers_another_call_is_no_reply(
    silent: tuple[Silent, str], kind: str, ahead: int
) -> None:
    handler, address = silent
    handler.answers, handler.kind, handler.ahead = 1, kind, ahead
    stream = MixerChannel(MixerAddress(address, tls=False, token=TOKEN), 60.0)
    with pytest.raises(LinkError, match=f"sent a {kind} frame that answers no call"):
        stream.open({})
    stream.close()
