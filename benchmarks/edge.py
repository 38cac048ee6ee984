"""Steps over slow lines: their time compared with the limit that lines and processors set.

A SuperLink and SuperNodes with TLS are real processes on this machine, each node behind a line of
its own (`benchmarks.lines`). The run is PSL on ViT-Tiny with 64 tokens and 32 images per client:
1.6 MB up and 1.6 MB down per client and step. The limit of an exact synchronous step is the longest
of its parts (the slowest transfer up, the slowest transfer down, the server's computation, the
slowest client's computation) plus a round trip.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from benchmarks.lines import Line, Namespace, Relay, missing
from benchmarks.measure import show, spread, write
from flwr_splitmix.flwr_command import config_text
from flwr_splitmix.sandbox.certificates import make_certificates
from flwr_splitmix.sandbox.deployment import LocalDeployment, Node
from flwr_splitmix.sandbox.superlink import SandboxError, end_as_if_asked, free_port
from flwr_splitmix.server.steps.part_count import PARTS_ALLOWED, PartsAsked, is_parts

ROOT = Path(__file__).resolve().parents[1]
APP = Path(__file__).parent / "apps" / "edge"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
RATIO, OVERHEAD, SPEEDUP = 1.15, 1.02, 1.5
"""Targets: a step's time over its limit, bytes on the wire over tensors' bytes, and the speed-up of
profile `mixed` by skipping stragglers."""

STARTING = Line(1000, 1000, 0)


@dataclass(frozen=True)
class Profile:
    """Lines of all nodes, and options of the strategy.

    Parameters
    ----------
    slow_factor
        Factor by which the last node is slower, in its line and its processor.
    """

    nodes: int
    line: Line
    slow_factor: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def line_of(self, node: int) -> Line:
        """Return a node's line."""
        slow = self.slow_factor != 1 and node == self.nodes - 1
        return self.line.slower(self.slow_factor) if slow else self.line


LTE, WIFI, FIBRE = Line(20, 5, 50), Line(50, 20, 10), Line(100, 100, 5)
MIXED = Profile(4, WIFI, 4.0, {"server-update": "sequential"})
SKIP = {"straggler": "skip", "group-order": "arrival"}
PROFILES = {
    "lte": Profile(2, LTE),
    "wifi": Profile(2, WIFI),
    "fibre": Profile(2, FIBRE),
    "mixed": MIXED,
    "mixed-skip": replace(MIXED, options={**MIXED.options, **SKIP}),
}


class Edge(LocalDeployment):
    """A deployment whose nodes reach the SuperLink and the ServerApp over lines of their own.

    Attributes
    ----------
    shaped_by
        "tc" where the kernel limits the rates, "relay" where the benchmark does.
    relays
        Each node's line to the ServerApp.
    """

    def __init__(self, nodes: int, shaped_by: str) -> None:
        super().__init__(nodes, environment=ENVIRONMENT)
        self.shaped_by = shaped_by
        self.link_address = f"127.0.0.1:{free_port()}"
        self.relays: list[Relay] = []
        self._controls: list[Relay] = []
        self._namespaces: list[Namespace] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._close_lines)
            if self.shaped_by == "tc":
                for index in range(self.num_nodes):
                    self._namespaces.append(Namespace(index))
                names = ["localhost", "127.0.0.1", *(n.outside for n in self._namespaces)]
                self.certificates = make_certificates(self.home / "line-certificates", names)
            hosts = [n.outside for n in self._namespaces] or ["127.0.0.1"] * self.num_nodes
            target = ("127.0.0.1", int(self.link_address.rsplit(":", 1)[1]))
            shapes = self.shaped_by == "relay"
            self.relays = [Relay(target, host, STARTING, shapes) for host in hosts]
            for node, relay in zip(self.nodes, self.relays, strict=True):
                node.config["line"] = relay.address
            super().__enter__()
            stack.pop_all()
        return self

    def stop(self) -> None:
        """End all processes, and take the lines down."""
        super().stop()
        self._close_lines()

    def _close_lines(self) -> None:
        for relay in (*self.relays, *self._controls):
            relay.close()
        for namespace in self._namespaces:
            namespace.close()
        self.relays, self._controls, self._namespaces = [], [], []

    def launch_node(self, node: Node) -> subprocess.Popen[bytes]:
        """Start a node's SuperNode at the end of its line."""
        if self.shaped_by == "relay":
            return super().launch_node(node)
        namespace = self._namespaces[node.index]
        control = Relay(("127.0.0.1", self.port), namespace.outside, STARTING, False)
        self._controls.append(control)
        return self._launch(
            f"node-{node.index}",
            shutil.which("ip") or "ip",
            "netns", "exec", namespace.name,
            str(self._bin / "flower-supernode"),
            "--root-certificates", str(self.certificates.ca),
            "--auth-supernode-private-key", str(node.key),
            "--superlink", control.address,
            "--port", str(node.port),
            "--node-config", config_text(node.config),
            environment={"FLWR_HOME": str(node.folder / "flwr")},
        )  # fmt: skip

    def shape(self, profile: Profile) -> None:
        """Set the rates and delays of the nodes' lines to those of a profile."""
        for index, relay in enumerate(self.relays):
            relay.line = profile.line_of(index) if index < profile.nodes else STARTING
            if self._namespaces:
                self._namespaces[index].shape(relay.line)


def measure(
    names: list[str], steps: int, depth: int, shaped_by: str, parts: PartsAsked
) -> dict[str, Any]:
    """Measure the named profiles; see `figures_of` for the keys of each.

    Parameters
    ----------
    parts
        Number of parts of a batch, or "auto", for profiles with a joint update.
    """
    runs: dict[str, dict[str, Any]] = {}
    # Each profile gets exactly its nodes, as any others would take part in rounds.
    for nodes in sorted({PROFILES[name].nodes for name in names}):
        with Edge(nodes, shaped_by) as edge:
            for name in names:
                if PROFILES[name].nodes == nodes:
                    runs[name] = _run(edge, PROFILES[name], steps, depth, parts)
    profiles = {name: runs[name] for name in names}
    if {"mixed", "mixed-skip"} <= runs.keys():
        skip = profiles.pop("mixed-skip")
        skip["speedup"] = runs["mixed"]["step_s"] / skip["step_s"]
        profiles["mixed"]["arrival_skip"] = skip
    overhead = max(run["wire_over_tensors"] for run in runs.values())
    return {
        "profiles": profiles,
        "wire_over_tensors": overhead,
        "targets": _targets(profiles, overhead),
        "settings": {
            "steps": steps,
            "depth": depth,
            "shaped_by": shaped_by,
            "micro_batches": parts,
            "command": " ".join(sys.orig_argv[1:]),
        },
    }


def _run(edge: Edge, profile: Profile, steps: int, depth: int, parts: PartsAsked) -> dict[str, Any]:
    edge.shape(profile)
    before = [dict(relay.nbytes) for relay in edge.relays]
    out = Path(tempfile.mkdtemp(dir=edge.home))
    config = {
        "nodes": profile.nodes,
        "steps": steps,
        "depth": depth,
        "slow-node": profile.nodes - 1 if profile.slow_factor != 1 else -1,
        "slow-factor": profile.slow_factor,
        "out": str(out),
        "link-address": edge.link_address,
        "micro-batches": 1 if "server-update" in profile.options else parts,
        **profile.options,
        **edge.link_config,
    }
    run_id = edge.submit(APP, config_text(config))
    status, details = edge.wait(run_id, timeout=900)
    file = out / "figures.json"
    if status != "finished:completed" or not file.exists():
        raise SandboxError(f"the run is {status} {details}: {edge.log(run_id)}")
    edge.shape(Profile(0, STARTING))
    wire = sum(
        relay.nbytes[way] - old[way]
        for relay, old in zip(edge.relays, before, strict=True)
        for way in ("up", "down")
    )
    return figures_of(json.loads(file.read_text()), profile, wire)


def figures_of(measured: Mapping[str, Any], profile: Profile, wire: int) -> dict[str, Any]:
    """Return a step's mean seconds, its limit, their ratio, and the seconds of its parts.

    Parameters
    ----------
    measured
        Figures that the ServerApp wrote.
    wire
        Number of bytes that went over the lines in the run, in both directions.
    """
    nbytes = measured["nbytes"]
    step = fmean(measured["step_s"])
    parts = {"server": measured["server_s"], "client": max(measured["client_s"].values())}
    for way in ("up", "down"):
        seconds = [
            node_bytes / measured["uploads"][node] / (getattr(line, way) * 1e6 / 8)
            for node, node_bytes in nbytes[way].items()
            for line in [profile.line_of(int(node))]
        ]
        parts[way] = max(seconds)
    trip = max(profile.line_of(node).rtt_ms for node in range(profile.nodes)) / 1000
    limit = max(parts.values()) + trip
    tensors = sum(sum(by_client.values()) for by_client in nbytes.values())
    return {
        "step_s": step,
        "parts": measured["parts"],
        "limit_s": limit,
        "ratio": step / limit,
        "parts_s": {**parts, "round_trip": trip},
        "shares": {name: seconds / step for name, seconds in {**parts, "round_trip": trip}.items()},
        "wire_over_tensors": wire / tensors,
        "spread": spread(measured["step_s"]),
        **{name: value for name, value in measured["row"].items() if value is not None},
    }


def _targets(profiles: Mapping[str, Any], overhead: float) -> dict[str, Any]:
    targets: dict[str, Any] = {
        "wire_over_tensors": {"at_most": OVERHEAD, "met": overhead <= OVERHEAD}
    }
    for name in ("lte", "wifi"):
        if name in profiles:
            met = profiles[name]["ratio"] <= RATIO
            targets[f"{name} ratio"] = {"at_most": RATIO, "met": met}
    if "arrival_skip" in profiles.get("mixed", {}):
        met = profiles["mixed"]["arrival_skip"]["speedup"] >= SPEEDUP
        targets["mixed speedup"] = {"at_least": SPEEDUP, "met": met}
    return targets


def print_table(figures: dict[str, Any]) -> None:
    rows = []
    for name, profile in figures["profiles"].items():
        skipping = profile.get("arrival_skip")
        for title, row in ((name, profile), (f"{name}, skip", skipping)):
            if row is not None:
                shares = (f"{100 * share:.0f} %" for share in row["shares"].values())
                times = (f"{row[key]:.2f}" for key in ("step_s", "limit_s", "ratio"))
                rows.append([title, *times, *shares])
    heads = ("", "step s", "limit s", "ratio", "server", "client", "up", "down", "RTT")
    show("Steps over slow lines; shares of a step", heads, rows)
    print(f"bytes on the wire over tensors' bytes: {figures['wire_over_tensors']:.4f}")
    for name, target in figures["targets"].items():
        bound = f"<= {target['at_most']:g}" if "at_most" in target else f">= {target['at_least']:g}"
        print(f"{name}, target {bound}: {'met' if target['met'] else 'not met'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="a few steps of a small model")
    parser.add_argument(
        "--profiles", default=",".join(PROFILES), help=f"some of {', '.join(PROFILES)}"
    )
    parser.add_argument("--depth", type=int, help="blocks of the ViT: what the server computes")
    parser.add_argument(
        "--micro-batches",
        default="1",
        help="parts of a batch, or auto; not for mixed, whose updates are sequential",
    )
    parser.add_argument(
        "--shape", choices=("auto", "tc", "relay"), default="auto", help="what limits the rates"
    )
    options = parser.parse_args()
    names = [name.strip() for name in options.profiles.split(",")]
    if unknown := [name for name in names if name not in PROFILES]:
        parser.error(f"--profiles has {unknown[0]!r}; available: {', '.join(PROFILES)}")
    micro_batches = options.micro_batches
    parts = int(micro_batches) if micro_batches.isdigit() else micro_batches
    if not is_parts(parts):
        parser.error(f"--micro-batches is {micro_batches!r}; {PARTS_ALLOWED}")
    lacking = missing() if options.shape != "relay" else ""
    if options.shape == "tc" and lacking:
        parser.error(f"--shape tc needs what is missing here ({lacking}); --shape relay does not")
    shaped_by = "relay" if options.shape == "relay" or lacking else "tc"
    if lacking:
        print(f"without {lacking} the rates are limited by a relay of the benchmark's own")
    signal.signal(signal.SIGTERM, end_as_if_asked)
    steps, depth = (3, 1) if options.quick else (8, 6)
    figures = measure(names, steps, options.depth or depth, shaped_by, parts)
    print_table(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
