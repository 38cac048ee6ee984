"""Stream link with 10, 100 and 1,000 nodes: processor time, memory, and time to attach.

The link's server has a process of its own, in which nothing else runs. The nodes, which only send a
fixed reply, are spread over a few more processes (`benchmarks.light_nodes`), each node with a TLS
connection of its own. All of them dial at once, exchange 51 kB each way a number of times, and
finish.

`server_ms` is the processor time of the server's whole process (packing, unpacking, TLS, gRPC) for
an exchange with one node. Nodes and server share this machine's cores, so wall-clock seconds
include the nodes' part.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import psutil
import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from benchmarks.measure import show, spread, write
from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.stream.server import max_connections
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.sandbox.certificates import make_certificates
from flwr_splitmix.server.messages import messages_to, with_tickets

ROOT = Path(__file__).resolve().parents[1]
NODES = (10, 100, 1000)
PROCESSES = 4
"""Maximum number of processes over which the nodes are spread."""

NUMBERS = 51_200 // 4
"""Count of float32 numbers sent to a node, and back, in an exchange."""

SERVER_RATIO, MEMORY_MB, ATTACH_SECONDS = 1.5, 2.0, 20.0
"""Upper bounds: `server_ms` with the most nodes over that with the fewest; MB per node after the
exchanges; seconds until the most nodes have attached."""


@dataclass(frozen=True)
class Play:
    """Task of a server's process.

    Parameters
    ----------
    exchanges
        Number of measured exchanges, after one to warm up.
    certificates
        Folder in which to make certificates.
    """

    nodes: int
    exchanges: int
    certificates: str


class NodeProcess:
    """A process with some of the nodes."""

    def __init__(self, reports: queue.SimpleQueue[dict[str, Any]]) -> None:
        self._reports = reports
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.light_nodes"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._reports.put(json.loads(line))

    def order(self, nodes: Sequence[dict[str, Any]]) -> None:
        """Let the process run nodes."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"numbers": NUMBERS, "nodes": nodes}) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


class NodesGrid:
    """The part of Flower's grid that a link needs: it passes messages to the processes' nodes."""

    def __init__(self, processes: int) -> None:
        self._reports: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._processes = [NodeProcess(self._reports) for _ in range(processes)]
        self._messages: dict[int, Message] = {}

    def wait(self) -> None:
        """Wait until all processes have started."""
        for _ in self._processes:
            assert self._reports.get(timeout=120)["ready"]

    def get_node_ids(self) -> list[int]:
        """Return the ids of all nodes."""
        return sorted(self._messages)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Let nodes take part in the round of their tickets; return the messages' ids."""
        self._messages = {message.metadata.dst_node_id: message for message in messages}
        orders: list[dict[str, Any]] = [
            {"node": node, "ticket": asdict(Ticket.from_message(message))}
            for node, message in self._messages.items()
        ]
        for index, process in enumerate(self._processes):
            process.order(orders[index :: len(self._processes)])
        return [message.metadata.message_id for message in self._messages.values()]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies of nodes that have finished since the last call."""
        replies = []
        while not self._reports.empty():
            content = RecordDict({"metrics": MetricRecord({"num-examples": 1})})
            request = self._messages[self._reports.get()["finished"]]
            replies.append(Message(content, reply_to=request))
        return replies

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.close()


def serve(play: Play) -> dict[str, Any]:
    """Run a round as the server, in this process; return its costs.

    Raises
    ------
    RuntimeError
        If a node has failed.
    """
    allow_connections(play.nodes)
    torch.set_num_threads(1)
    certificates = make_certificates(Path(play.certificates), ["localhost", "127.0.0.1"])
    link = StreamLink(
        address="127.0.0.1:0",
        certificate=certificates.certificate,
        key=certificates.key,
        ca=certificates.ca,
    )
    process = psutil.Process()
    nodes = {index: 1000 + index for index in range(play.nodes)}
    grid = NodesGrid(min(PROCESSES, play.nodes))
    payload = {"gradient": [torch.zeros(NUMBERS)], "number": 0}
    payloads = dict.fromkeys(nodes, payload)
    try:
        grid.wait()
        link.open(None)
        ticket_of = partial(Ticket, seed=0, server_round=1, num_rounds=1)
        messages = messages_to(list(nodes.values()), RecordDict(), "train", in_run=False)
        messages = with_tickets(messages, nodes, ticket_of, lambda client: {})
        before = process.memory_info().rss
        began = time.perf_counter()
        with link.round(cast(Grid, grid), messages) as clients:
            attach_s = time.perf_counter() - began
            attached = process.memory_info().rss
            clients.call("step", payloads)
            seconds, computed = time.perf_counter(), time.process_time()
            for _ in range(play.exchanges):
                clients.call("step", payloads)
            seconds = time.perf_counter() - seconds
            computed = time.process_time() - computed
            exchanged = process.memory_info().rss
            threads = process.num_threads()
            began = time.perf_counter()
        finish_s = time.perf_counter() - began
        if clients.failures:
            raise RuntimeError(f"nodes have failed: {clients.failures}")
    finally:
        grid.close()
        link.close()
    each = play.nodes * play.exchanges
    return {
        "server_ms": 1000 * computed / each,
        "exchange_s": seconds / play.exchanges,
        "attach_s": attach_s,
        "finish_s": finish_s,
        "rss_mb": exchanged / 1e6,
        "attached_mb_a_node": (attached - before) / 1e6 / play.nodes,
        "exchanged_mb_a_node": (exchanged - before) / 1e6 / play.nodes,
        "threads": threads,
    }


def allow_connections(nodes: int) -> None:
    """Raise this process's limit on file descriptors, if necessary, so that all nodes fit.

    Raises
    ------
    SystemExit
        If the hard limit is too low.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * nodes + 512  # connections may take three quarters of the limit
    if soft < needed:
        if resource.RLIM_INFINITY != hard < needed:
            raise SystemExit(
                f"{nodes} nodes need {needed} descriptors (ulimit -n), allowed: {hard}"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    assert max_connections() >= nodes


def measure(counts: Sequence[int], calls: int, least: int, repeats: int) -> dict[str, Any]:
    """Measure each number of nodes, in server processes of its own that take turns.

    Parameters
    ----------
    calls, least
        Minimum number of measured calls to nodes, and of exchanges.
    repeats
        Number of server processes for each number of nodes.
    """
    runs: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    for _ in range(repeats):
        for count in counts:
            with tempfile.TemporaryDirectory() as folder:
                play = Play(count, max(least, calls // count), folder)
                runs[count].append(_served(play))
    by_count: dict[str, dict[str, Any]] = {}
    for count, plays in runs.items():
        spreads = {name: spread([play[name] for play in plays]) for name in plays[0]}
        medians = {name: row["median"] for name, row in spreads.items()}
        by_count[str(count)] = {**medians, "spread": spreads}
    few, many = (by_count[str(count)] for count in (min(counts), max(counts)))
    ratio = many["server_ms"] / few["server_ms"]
    reached = {
        "server_ms_ratio": (SERVER_RATIO, ratio),
        "exchanged_mb_a_node": (MEMORY_MB, many["exchanged_mb_a_node"]),
        "attach_s": (ATTACH_SECONDS, many["attach_s"]),
    }
    return {
        **by_count,
        "server_ms_ratio": ratio,
        "targets": {
            name: {"at_most": bound, "met": value <= bound}
            for name, (bound, value) in reached.items()
        },
        "settings": {
            "nodes": list(counts),
            "calls": calls,
            "least_exchanges": least,
            "repeats": repeats,
            "bytes_each_way": 4 * NUMBERS,
            "node_processes": PROCESSES,
            "command": " ".join(sys.orig_argv[1:]),
            "versions": {name: version(name) for name in ("grpcio", "safetensors")},
        },
    }


def _served(play: Play) -> dict[str, Any]:
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.many_nodes", "--serve", json.dumps(asdict(play))],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return figures


def print_table(figures: dict[str, Any]) -> None:
    names = ("server_ms", "exchange_s", "attach_s", "finish_s", "rss_mb", "exchanged_mb_a_node")
    rows = []
    for count in figures["settings"]["nodes"]:
        row = figures[str(count)]
        rows.append([str(count), *(f"{row[name]:.3f}" for name in names), f"{row['threads']:.0f}"])
    heads = ("nodes", "server ms", "exchange s", "attach s", "finish s", "MB", "MB a node")
    show("Nodes at one ServerApp", (*heads, "threads"), rows)
    many = figures[str(max(figures["settings"]["nodes"]))]
    for name, target in figures["targets"].items():
        value = figures.get(name, many.get(name))
        met = "met" if target["met"] else "not met"
        print(f"{name} {value:.2f}, target <= {target['at_most']:g}: {met}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the figures; needed")
    parser.add_argument("--quick", action="store_true", help="few nodes: is it alive?")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        print(json.dumps(serve(Play(**json.loads(options.serve)))))
        return
    if options.out is None:
        parser.error("--out is needed")
    figures = measure((10, 50), 100, 2, 1) if options.quick else measure(NODES, 4000, 10, 3)
    print_table(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
