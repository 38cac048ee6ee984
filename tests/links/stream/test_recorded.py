"""Law 6 on the bytes that crossed the network, all recorded by a TCP proxy before the link."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message
from safetensors.torch import load
from torch import Tensor

from flwr_splitmix.events import Exchange
from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.links.frames.codec import PREFIX, decode
from flwr_splitmix.links.ticket import Ticket, with_record
from flwr_splitmix.schedule import constant
from flwr_splitmix.strategies import CutMixSL, SplitStrategy
from flwr_splitmix.testing.recording import Recording, recorded_bytes, watch_segment
from flwr_splitmix.testing.toy import Toy, sgd
from flwr_splitmix.testing.whole import MakeStrategy
from flwr_splitmix.testing.wire import SEED, check_recording
from tests.laws.makers import maker, toy_for
from tests.links.fake_grid import FakeGrid, OneAtATime, OnFakeGrid, toy_app
from tests.links.stream.http2 import grpc_messages
from tests.links.stream.peers import Proxy

STEPS = 3


def tensor_bytes(frame: bytes) -> int:
    """Count the bytes of a frame's tensors with the safetensors package, not with our codec."""
    _, _, _, header, body = PREFIX.unpack_from(frame)
    assert len(frame) == PREFIX.size + header + body
    tensors = load(frame[PREFIX.size + header :]) if body else {}
    return sum(tensor.nbytes for tensor in tensors.values())


class Recorded:
    """One training round over the stream; each client dials a proxy of its own."""

    def __init__(self, make: MakeStrategy, toy: Toy, folder: Path) -> None:
        self.observed = Recording()
        self.watched: dict[int, list[Tensor]] = {}
        self.proxies: dict[int, Proxy] = {}
        self.strategy: SplitStrategy = make(
            toy.upper(),
            optimizer=sgd(0.1),
            schedule=constant,
            steps_per_round=STEPS,
            device="cpu",
            seed=SEED,
            evaluation="none",
            observers=[self.observed],
        )
        watched = self.watched

        class Watched(OneAtATime):
            def attach(self, order: Any, arrays: Any) -> dict[str, Any]:
                if order.client not in watched:
                    watched[order.client] = watch_segment(self.segment)
                return super().attach(order, arrays)

        shares = self.strategy.mixer.shares
        self._app = toy_app(toy, Watched, optimizer=sgd(0.1), shares=shares)
        grid = FakeGrid(self._handle, toy.clients, **{"state-dir": str(folder)})
        self.strategy.link = OnFakeGrid(StreamLink(address="127.0.0.1:0"), grid)
        self.strategy.start(None, to_arrays(toy.lower().state_dict()), 1)  # type: ignore[arg-type]
        grid.wait()
        for proxy in self.proxies.values():
            proxy.close()

    def _handle(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train":
            ticket = Ticket.from_message(message)
            self.proxies[ticket.client] = proxy = Proxy(ticket.address)
            ticket = replace(ticket, address=proxy.address)
            message.content = with_record(message.content, ticket.to_record())
        return self._app(message, context)

    def frames(self, client: int, way: str) -> list[bytes]:
        """Return the messages of one client that crossed the network one way."""
        return list(grpc_messages(b"".join(self.proxies[client].heard[way])))

    def recording(self) -> Recording:
        """Make the round's recording from the bytes on the network."""
        recording = Recording()
        recording.steps = self.observed.steps
        for client in self.proxies:
            hello, *replies = self.frames(client, "up")
            assert decode(hello).kind == "hello"
            welcome, *calls, finish = self.frames(client, "down")
            assert (decode(welcome).kind, decode(finish).kind) == ("hello", "finish")
            assert len(calls) == len(replies) == STEPS + 1
            for number, (down, up) in enumerate(zip(calls, replies, strict=True), start=1):
                call, reply = decode(down), decode(up)
                assert (call.kind, call.text, call.number) == ("call", "step", number)
                assert (reply.kind, reply.text, reply.number) == ("reply", "", number)
                arguments = call.payload["arguments"]
                request = Exchange(1, client, "step", "down", arguments, tensor_bytes(down))
                response = Exchange(1, client, "step", "up", reply.payload, tensor_bytes(up))
                recording.down[client].append(request)
                recording.up[client].append(response)
        return recording


CUTMIX_FORMS: dict[str, MakeStrategy] = {
    "k_times": partial(CutMixSL, k=3, k_times=True),
    "broadcast": partial(CutMixSL, gradient="broadcast"),
    "mask_per_sample": partial(CutMixSL, mask_per_sample=True),
}
KINDS = ("PSL", "MixupSL", "VanillaCutMixSFL", "CutMixSFL", "DPCutMixSL", "PatchShuffleSL")


@pytest.mark.parametrize("name", [*KINDS, "InputMixupSL", "BlockCutMix", *CUTMIX_FORMS])
def test_the_network_carries_kept_patches_and_labels_only(name: str, tmp_path: Path) -> None:
    toy = toy_for(name)
    recorded = Recorded(CUTMIX_FORMS.get(name) or maker(name), toy, tmp_path)
    recording = recorded.recording()
    unchecked = check_recording(
        recording, [recorded.watched[i] for i in range(toy.clients)], recorded.strategy, toy, STEPS
    )
    assert len(unchecked) == name.startswith("DP")  # noise is random
    # The library's observers were told exactly what crossed.
    for observed, crossed in (
        (recorded.observed.up, recording.up),
        (recorded.observed.down, recording.down),
    ):
        for client, events in crossed.items():
            assert [e.nbytes for e in events] == [
                recorded_bytes(e.payload) for e in observed[client]
            ]


def test_beside_the_tensors_only_headers_of_plain_values_cross(tmp_path: Path) -> None:
    toy = toy_for("CutMixSFL")
    recorded = Recorded(maker("CutMixSFL"), toy, tmp_path)
    clients = set(recorded.observed.up) | set(recorded.observed.down)
    assert clients == set(range(toy.clients))
    for client in clients:
        for way in ("up", "down"):
            for data in recorded.frames(client, way):
                _, _, _, length, body = PREFIX.unpack_from(data)
                header = json.loads(data[PREFIX.size : PREFIX.size + length])
                assert header.keys() == {"kind", "number", "text", "payload"}
                # Only the format's own header and tensors, with nothing after or between them.
                inner = int.from_bytes(data[PREFIX.size + length :][:8], "little") if body else 0
                assert body == (8 + inner + tensor_bytes(data) if body else 0)
