"""Ten thousand mutated and truncated frames, at either end of a line and over a real stream."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import psutil
import pytest
import torch

from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.frames.codec import Frame, encode
from flwr_splitmix.links.frames.payload import payload_bytes
from flwr_splitmix.links.link import Outcome
from flwr_splitmix.links.stream.line import Line
from flwr_splitmix.links.stream.session import Session
from flwr_splitmix.links.ticket import Ticket
from tests.links.frames.test_not_frames import mutated
from tests.links.stream.peers import DESCRIPTION, Raw, a_round, call, good, no_threads_left

MAX_BODY = 10_000
TENSORS = {"smashed": [torch.randn(2, 6, 3)], "labels": torch.tensor([0, 1])}
HELLO = encode(Frame("hello", 0, payload=DESCRIPTION))
REPLY = encode(Frame("reply", 1, payload=TENSORS))
ARGUMENTS = {"number": 0, "gradient": TENSORS["smashed"]}
CALL = encode(Frame("call", 1, "step", {"answered": 0, "arguments": ARGUMENTS}))


class Cable:
    """A connection that stands."""

    def is_active(self) -> bool:
        return True

    def wake(self) -> None:
        return None

    def cancel(self) -> None:
        return None


def is_sentence(text: str | None) -> bool:
    return text is not None and 0 < len(text) <= 500 and text.isprintable()


def refusals(seeds: Iterable[int]) -> int:
    """Send a line one damaged frame for each seed; returns how often it ended because of it.

    Whatever it is told, a line carries on or says why it does not, and never raises.
    """
    refused = 0
    for seed in seeds:
        rng = random.Random(seed)
        line, cable, outcome = Line(lambda: None, max_body=MAX_BODY), Cable(), None
        line.connect(cable)
        if rng.random() < 0.3:
            line.hello(cable, mutated(HELLO, rng))
            answered = line.description is not None
        else:
            line.hello(cable, HELLO)
            call = line.submit("step", {"number": 0})
            assert (line.next_frame(cable) or ([], False))[0]
            call_ended = line.receive(cable, mutated(REPLY, rng))
            outcome = call.outcome
            # A frame about another call changes nothing: the call stays in flight.
            assert call_ended == (outcome is not None)
            answered = outcome is None or outcome.error is None
            if outcome is not None and outcome.reply is not None:
                assert payload_bytes(outcome.reply, "keep") <= MAX_BODY
            elif outcome is not None:
                assert is_sentence(outcome.error)
        assert line.failure is None or is_sentence(line.failure)
        assert answered or line.failure or outcome is not None
        if line.failure is not None:
            refused += 1
            farewell = line.next_frame(cable)
            assert farewell is not None
            assert farewell[1], "a line that has failed sends another call"
    return refused


@pytest.mark.parametrize("block", range(10))
def test_a_line_takes_a_damaged_frame_or_ends_with_a_sentence(block: int) -> None:
    assert refusals(range(1000 * block, 1000 * (block + 1))) > 500


ROUNDS, AT_ONCE = 8, 50


def test_nodes_that_send_damaged_frames_disturb_no_other() -> None:
    link = StreamLink(
        address="127.0.0.1:0", attach_timeout=60, step_timeout=12, reattach_timeout=1,
        max_body=MAX_BODY,
    )  # fmt: skip
    link.open(None)
    before = psutil.Process().memory_info().rss

    def rude(seed: int) -> Callable[[Ticket, int], None]:
        def peer(ticket: Ticket, node: int) -> None:
            raw = Raw(ticket, node)
            try:
                raw.hello()
                raw.hear()
                raw.say(mutated(REPLY, random.Random(seed)))
                raw.hear()
            except (grpc.RpcError, StopIteration):
                pass
            finally:
                raw.close()
            raise LinkError("has done its harm")

        return peer

    honest = [0, AT_ONCE + 1]
    for first in range(0, ROUNDS * AT_ONCE, AT_ONCE):
        peers = [good, *(rude(seed) for seed in range(first, first + AT_ONCE)), good]
        with a_round(link, peers) as clients:
            assert len(clients.alive) == AT_ONCE + 2
            replies = clients.call("echo", {client: {"value": 1} for client in clients.alive})
            assert [replies[client] for client in honest] == [{"echo": 1}] * 2
            # A client that is left out learns why.
            assert clients.failures
            assert all(is_sentence(reason) for reason in clients.failures.values())
            assert call(clients, 2, honest) == dict.fromkeys(honest, 2)
    link.close()
    no_threads_left()
    assert psutil.Process().memory_info().rss - before < 200e6


class Rogue(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server that greets and then sends one damaged call to each connection."""

    def __init__(self) -> None:
        self.seeds = iter(range(10_000))
        self.lock = threading.Lock()

    def service(self, details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(self.serve)

    def serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        with self.lock:
            rng = random.Random(next(self.seeds))
        next(requests)
        yield encode(Frame("hello"))
        yield mutated(CALL, rng)
        yield encode(Frame("leave", text="that is all"))


def test_a_node_gets_over_a_server_that_sends_damaged_frames() -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Rogue(),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    methods: list[str] = []

    def answer(method: str, arguments: Mapping[str, Any]) -> Outcome:
        methods.append(method)
        return Outcome({}) if method == "step" else Outcome(None, f"{method!r} is no exchange")

    ticket = Ticket(0, 0, 1, 1, link="stream", address=address, tls=False, patience=0.5)
    reasons = set()
    for _ in range(300):
        with pytest.raises(LinkError) as caught:
            Session(ticket, 1, {}, answer, max_body=MAX_BODY).run()
        assert is_sentence(str(caught.value))
        reasons.add(str(caught.value).partition(":")[0])
    server.stop(0).wait()
    assert "the server sent bytes that are not a frame" in reasons
    assert len(methods) < 200
