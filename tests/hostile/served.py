"""A link's server in a process of its own, so that its descriptors and memory can be looked at.

`python -m tests.hostile.served '{"nodes": 2}'` plays rounds over a StreamLink on the loopback and
says, a line of JSON each: the ticket of every node, what the rounds came to.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.ticket import Ticket
from tests.links.stream.peers import a_round, call, numbers

ROOT = Path(__file__).parents[2]
_SPEAKING = threading.Lock()


@dataclass(frozen=True)
class Play:
    """What the server's process is to do.

    Parameters
    ----------
    nodes
        How many take part in each round.
    rounds, seconds, last_seconds
        How many rounds, and how long nodes are called in each, and in the last one (0: as long).
    megabytes
        Of each call and of each reply.
    attach_timeout
        Seconds to wait for the nodes of a round.
    descriptors
        Soft limit of the process's open files; 0 leaves it.
    """

    nodes: int
    rounds: int = 1
    seconds: float = 1.0
    last_seconds: float = 0.0
    megabytes: float = 0.1
    attach_timeout: float = 60.0
    descriptors: int = 0


class Served:
    """The process, as the test sees it."""

    def __init__(self, play: Play) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.served", json.dumps(asdict(play))],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line)

    def hear(self, timeout: float = 120.0) -> dict[str, Any]:
        """Return the next thing that the process says."""
        line = self._said.get(timeout=timeout)
        report: dict[str, Any] = json.loads(line)
        return report

    def heard(self) -> dict[str, Any] | None:
        """Return the next thing that the process has said, None if it has said nothing."""
        assert self.process.poll() is None, "the server has ended"
        try:
            return self.hear(timeout=0)
        except queue.Empty:
            return None

    def ticket(self) -> tuple[Ticket, int]:
        """Return the next node's ticket and id."""
        report = self.hear()
        return Ticket(**report["ticket"]), report["node"]

    def resident(self) -> int:
        """Return the bytes of memory that the process has now."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def peak(self) -> int:
        """Return the most bytes of memory that the process has had (Linux)."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return 1024 * int(line.split()[1])

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


@contextmanager
def served(**play: Any) -> Iterator[Served]:
    """Start a server's process; it is ended with the block."""
    server = Served(Play(**play))
    try:
        yield server
    finally:
        server.close()


def say(**fields: Any) -> None:
    """Tell the test, from any thread."""
    with _SPEAKING:
        print(json.dumps(fields), flush=True)


def serve(play: Play) -> None:
    """Play the rounds."""
    if play.descriptors:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (play.descriptors, hard))
    link = StreamLink(
        address="127.0.0.1:0",
        attach_timeout=play.attach_timeout,
        step_timeout=20.0,
        reattach_timeout=2.0,
    )
    link.open(None)
    value = numbers(play.megabytes)
    for server_round in range(1, play.rounds + 1):
        over = threading.Event()

        def relay(ticket: Ticket, node: int, over: threading.Event = over) -> None:
            say(ticket=asdict(ticket), node=node)
            over.wait()

        last = server_round == play.rounds
        seconds = play.last_seconds if last and play.last_seconds else play.seconds
        began, calls = time.monotonic(), 0
        with a_round(link, [relay] * play.nodes, server_round) as clients:
            attached = time.monotonic()
            while clients.alive and time.monotonic() < attached + seconds:
                call(clients, value)
                calls += 1
            over.set()
        say(
            round=server_round,
            alive=clients.alive,
            failures=clients.failures,
            attach_seconds=attached - began,
            calls=calls,
        )
    link.close()
    sys.stdin.read()  # until the test has looked at the process


if __name__ == "__main__":
    serve(Play(**json.loads(sys.argv[1])))
