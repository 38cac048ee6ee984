"""Peers in processes of their own, which are killed and frozen in the midst of a round."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from flwr_splitmix.links import LinkError, StreamLink
from flwr_splitmix.links.link import Patience
from flwr_splitmix.links.ticket import Ticket
from tests.links.stream.peers import a_round, call, good, no_threads_left
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

PEER = """
import json, sys
from flwr_splitmix.links import LinkError
from flwr_splitmix.links.link import Patience
from flwr_splitmix.links.ticket import Ticket
from tests.links.stream.peers import good
order = json.loads(sys.stdin.readline())
try:
    good(Ticket(**order["ticket"]), order["node"])
    print("finished")
except LinkError as error:
    print(error)
"""


class Process:
    """A peer in a process of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.said = ""

    def __call__(self, ticket: Ticket, node: int) -> None:
        order = json.dumps({"ticket": asdict(ticket), "node": node})
        self.said = self.process.communicate(order + "\n")[0].strip()
        if self.said != "finished":
            raise LinkError(self.said or "was killed")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started = [Process() for _ in range(3)]
    yield started
    for peer in started:
        peer.process.kill()
        peer.process.wait()


def test_killed_and_frozen_peers(processes: list[Process]) -> None:
    link = StreamLink(
        address="127.0.0.1:0", attach_timeout=240, step_timeout=10, reattach_timeout=2
    )
    link.open(None)
    killed, frozen, slow = processes
    with a_round(link, [good, killed, frozen, slow]) as clients:
        assert sorted(call(clients, 1)) == [0, 1, 2, 3]
        slow.signal(signal.SIGSTOP)
        threading.Timer(1.5, slow.signal, (signal.SIGCONT,)).start()
        assert sorted(call(clients, 2)) == [0, 1, 2, 3]
        killed.signal(signal.SIGKILL)
        assert sorted(call(clients, 3)) == [0, 2, 3]
        assert clients.failures == {1: "was cut off and not back within 2 s"}
        frozen.signal(signal.SIGSTOP)
        began = time.monotonic()
        assert sorted(call(clients, 4)) == [0, 3]
        assert 9.9 <= time.monotonic() - began < 60
        assert clients.failures[2] == "did not answer echo within 10 s"
        frozen.signal(signal.SIGCONT)
        wait_for("the end of the frozen peer", lambda: frozen.said)
        assert frozen.said == "left out of the round: did not answer echo within 10 s"
        assert sorted(call(clients, 5)) == [0, 3]
    assert len(clients.replies) == 2
    link.close()
    no_threads_left()


def test_a_peer_killed_while_it_is_late_costs_its_own_steps_only(processes: list[Process]) -> None:
    link = StreamLink(
        address="127.0.0.1:0", attach_timeout=240, step_timeout=30, reattach_timeout=2
    )
    link.open(None)
    killed, frozen, other = processes
    with a_round(link, [good, killed, frozen, other]) as clients:
        assert sorted(call(clients, 1)) == [0, 1, 2, 3]
        for peer in (killed, frozen):
            peer.signal(signal.SIGSTOP)
        payloads = {client: {"value": 2} for client in clients.alive}
        came = dict(clients.answers("echo", payloads, patience=Patience(3.0, 2)))
        assert sorted(came) == [0, 3]
        assert clients.busy == {1, 2}
        killed.signal(signal.SIGKILL)
        frozen.signal(signal.SIGCONT)
        wait_for("the late peer and the dead one", lambda: not clients.busy)
        assert clients.failures == {1: "was cut off and not back within 2 s"}
        # The one that was only late answers to this call, not to the one before.
        assert call(clients, 3) == dict.fromkeys((0, 2, 3), 3)
    assert clients.late == {1: 1, 2: 1}
    assert len(clients.replies) == 3
    link.close()
    no_threads_left()
