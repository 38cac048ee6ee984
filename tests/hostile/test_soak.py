"""Memory over many rounds and calls: a server and its nodes, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict

import numpy as np
import psutil

from flwr_splitmix.links.stream.server import STRANGER_SECONDS
from tests.hostile.served import ROOT, Served, served

SECONDS = float(os.environ.get("SOAK", "60"))
NODES = 3
MEGABYTES = 2.0

SHORT = 2.0
"""Seconds of the first rounds; the last one is the rest, longer than a stranger may stay."""

LARGEST_SLOPE = 0.3
"""MB a second: a leak of one frame in a hundred."""

ROUND, ROUNDS = "within the last", "from round to round"
SETTLING = {ROUND: 5 * MEGABYTES, ROUNDS: 15 * MEGABYTES}
"""MB by which a heap may differ between two moments of the same kind, the first rounds included."""


def start_node() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.hostile.node"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def play_round(server: Served, nodes: list[subprocess.Popen[str]]) -> tuple[int, list[list[float]]]:
    """Hand out the tickets of a round, and watch all until its end.

    Returns
    -------
    The calls that were made, and samples: seconds, then MB of the server and of each node.
    """
    for node in nodes:
        ticket, name = server.ticket()
        assert node.stdin is not None
        node.stdin.write(json.dumps({"ticket": asdict(ticket), "node": name}) + "\n")
        node.stdin.flush()
    watched = [psutil.Process(process.pid) for process in (server.process, *nodes)]
    samples = []
    while (ended := server.heard()) is None:
        samples.append([time.monotonic(), *(p.memory_info().rss / 1e6 for p in watched)])
        time.sleep(0.5)
    assert ended["alive"] == list(range(NODES)), ended["failures"]
    return int(ended["calls"]), samples


def growth(samples: list[list[float]]) -> tuple[float, list[float]]:
    """Return the seconds that samples span, and by how many MB each process grew in them."""
    times, *memory = np.array(samples).T
    seconds = float(times[-1] - times[0])
    return seconds, [float(np.polyfit(times, series, 1)[0]) * seconds for series in memory]


def test_memory_stays_flat() -> None:
    """In 676 s, 151 rounds, 25,261 calls: -0.01 MB a second, nodes 0.02 to 0.03."""
    long = max(SECONDS / 2, 1.2 * STRANGER_SECONDS)
    rounds = max(2, round((SECONDS - long) / SHORT))
    with contextlib.ExitStack() as started:
        nodes = []
        for _ in range(NODES):
            node = started.enter_context(start_node())
            started.callback(node.kill)
            nodes.append(node)
        play = {"nodes": NODES, "megabytes": MEGABYTES}
        server = started.enter_context(
            served(**play, rounds=rounds + 1, seconds=SHORT, last_seconds=long)
        )
        calls, watched = zip(*(play_round(server, nodes) for _ in range(rounds + 1)), strict=True)
    # Between two rounds a process holds less than in one: what they have in common is their peak.
    peaks = [list(np.max(samples, axis=0)) for samples in watched[:-1] if samples]
    last = watched[-1]
    by_part = {
        ROUNDS: growth(peaks[len(peaks) // 3 :]),
        ROUND: growth(last[len(last) // 6 :]),
    }
    summary = "; ".join(
        f"{part}, {seconds:.0f} s: " + ", ".join(f"{megabytes:+.1f}" for megabytes in grown)
        for part, (seconds, grown) in by_part.items()
    )
    print(
        f"{rounds + 1} rounds, {sum(calls)} calls of {MEGABYTES:g} MB there and back; "
        f"MB by which the server and {NODES} nodes grew {summary}"
    )
    for part, (seconds, grown) in by_part.items():
        assert max(grown) < LARGEST_SLOPE * seconds + SETTLING[part], summary
