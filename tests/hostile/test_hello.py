"""A node that is let in must not cost the server more memory than its frames may have."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import pytest

from flwr_splitmix.links.stream.absence import POSSIBLE_REASONS
from flwr_splitmix.links.ticket import Ticket
from tests.hostile.served import ROOT, Served, served
from tests.links.stream.peers import Raw, good

GIGABYTE = 1 << 30

FAT = """
import json, os, sys
import grpc
from flwr_splitmix.links.frames.codec import PREFIX
from flwr_splitmix.links.stream.protocol import METHOD, NODE_KEY, PROTOCOL, PROTOCOL_KEY, TOKEN_KEY
print("ready", flush=True)
order = json.loads(sys.stdin.readline())
size = order["bytes"]
hello = PREFIX.pack(b"SMXF", 1, 0, 1 << 10, size - PREFIX.size - (1 << 10)).ljust(size, b"\\0")
step = order["piece"] or size
pieces = (hello[start : start + step] for start in range(0, size, step))
channel = grpc.insecure_channel(
    order["ticket"]["address"],
    options=[("grpc.max_send_message_length", -1)],
    compression=grpc.Compression.Gzip if order["gzip"] else None,
)
metadata = (
    (TOKEN_KEY, order["ticket"]["token"]),
    (NODE_KEY, str(order["node"])),
    (PROTOCOL_KEY, str(PROTOCOL)),
)
try:
    said = b"".join(channel.stream_stream(METHOD)(pieces, metadata=metadata))
    print("the server says", said.decode(errors="replace"))
except grpc.RpcError as error:
    print(error.code().name, error.details())
# What the server said is here. Python's own end takes gRPC apart, which once hung for minutes.
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def fat() -> Iterator[subprocess.Popen[str]]:
    """Start a process that sends a hello of 1 GB when it is told where to; it is ready to."""
    process = subprocess.Popen(
        [sys.executable, "-c", FAT],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


def send_hello(fat: subprocess.Popen[str], server: Served, **how: Any) -> tuple[str, int]:
    """Send a hello of 1 GB: (how that ends for its process, the server's growth in bytes)."""
    before = server.peak()
    output, _ = fat.communicate(json.dumps(how) + "\n", timeout=240)
    return output.strip(), server.peak() - before


def longest_refusal(ticket: Ticket, node: int, fat: subprocess.Popen[str]) -> float:
    """Return the most seconds that the server takes to refuse a token, until a process has ended.

    Refusing costs it next to nothing: whoever waits for that, waits for what it does besides.
    """
    longest = 0.0
    while fat.poll() is None:
        began = time.monotonic()
        stranger = Raw(replace(ticket, token="nonsense"), node)
        stranger.refusal()
        stranger.close()
        longest = max(longest, time.monotonic() - began)
    return longest


def seconds_to_decompress_it() -> float:
    """Return how long this machine takes, as busy as it is, to decompress 1 GB."""
    part = zlib.compress(bytes(GIGABYTE // 16), 1)
    began = time.monotonic()
    zlib.decompress(part)
    return 16 * (time.monotonic() - began)


GZIP = "UNIMPLEMENTED Compression algorithm 'gzip' is disabled"
LATE = f"did not attach within 30 s (attach-timeout); {POSSIBLE_REASONS}"
TOO_LONG = (
    "sent bytes that are not a frame: a frame's body has 1073740776 bytes, at most 65536 are "
    "allowed"
)


@pytest.mark.parametrize(
    ("how", "ends", "reason"),
    [
        ({"gzip": True, "piece": 0}, [GZIP], LATE),
        # Whose stream is cut while it still sends hears of that, or of the reason.
        ({"gzip": False, "piece": 0}, ["RESOURCE_EXHAUSTED", "CANCELLED"], LATE),
        ({"gzip": False, "piece": 1 << 20}, [TOO_LONG, "CANCELLED"], TOO_LONG),
    ],
    ids=["compressed", "one message", "pieces"],
)
def test_a_hello_of_a_gigabyte_costs_the_server_nothing(
    how: dict[str, Any], ends: list[str], reason: str, fat: subprocess.Popen[str]
) -> None:
    """Decoded, it would take gigabytes and seconds, for which all others wait."""
    with served(nodes=2, attach_timeout=30) as server, ThreadPoolExecutor(1) as strangers:
        (ticket, node), (other, other_node) = server.ticket(), server.ticket()
        honest = threading.Thread(target=good, args=(other, other_node), daemon=True)
        honest.start()
        refusals = strangers.submit(longest_refusal, ticket, node, fat)
        try:
            bound = seconds_to_decompress_it()
            output, growth = send_hello(
                fat, server, ticket=asdict(ticket), node=node, bytes=GIGABYTE, **how
            )
        finally:
            fat.kill()
        longest = refusals.result()
        print(f"{how}: the server grew by {growth / 1e6:.0f} MB; {output[:200]}")
        print(f"others waited for at most {longest:.3f} s; the bound is {bound:.1f} s")
        assert any(end in output for end in ends)
        assert growth < 100e6
        assert longest < bound
        ended = server.hear()
        assert ended["alive"] == [other.client]
        assert ended["failures"] == {str(ticket.client): reason}
        honest.join(60)
