"""Cost of a step on deployed SuperNodes, over the stream link and by Flower messages.

A SuperLink with TLS and two SuperNodes with keys of their own are real processes on this machine;
the link has TLS, too. Steps train LeNet-5 on batches of 32 random images. Then payloads of 6 MB go
there and back over the link, alternating with the same bytes over a bare gRPC stream between the
same processes.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.measure import show, spread, write
from flwr_splitmix.flwr_command import config_text
from flwr_splitmix.sandbox.deployment import LocalDeployment
from flwr_splitmix.sandbox.superlink import SandboxError, end_as_if_asked

ROOT = Path(__file__).resolve().parents[1]
APPS = Path(__file__).parent / "apps" / "deploy"
NODES = 2
STREAM_MS, STREAM_TO_ECHO, MESSAGES_TO_STREAM = 15.0, 0.7, 200.0
"""Targets: one upper and two lower bounds."""

ENVIRONMENT = {
    # Two SuperNodes and a ServerApp share the cores: threads would wait for each other.
    "OMP_NUM_THREADS": "1",
    # The apps share modules that are not in their own folders.
    "PYTHONPATH": str(ROOT),
}


def measure(rounds: int, steps: int, message_steps: int, megabytes: float) -> dict[str, Any]:
    """Measure everything; see the keys of `summarise`."""
    with LocalDeployment(NODES, environment=ENVIRONMENT) as deployment:
        out = deployment.home / "figures"
        out.mkdir()
        shared = {"nodes": NODES, "repeats": steps, "out": str(out), **deployment.link_config}
        apps: dict[str, tuple[str, dict[str, Any]]] = {
            "steps": ("stream", {"what": "steps", "rounds": rounds, **shared}),
            "payloads": ("stream", {"what": "payloads", "megabytes": megabytes, **shared}),
            "messages": (
                "messages",
                {"steps": message_steps, "out": str(out / "messages.json")},
            ),
        }
        by_app = {n: _figures(deployment, n, a, c, out) for n, (a, c) in apps.items()}
    samples: dict[str, list[float]] = {**by_app["steps"], **by_app["messages"]}
    for nodes, name in ((1, "one_node_"), (NODES, "")):
        pairs = [by_app["payloads"][key][str(nodes)] for key in ("stream_ms", "echo_ms")]
        # There and back, of every node.
        rates = [[2 * nodes * megabytes * 1000 / ms for ms in times] for times in pairs]
        samples |= {f"{name}stream_mb_s": rates[0], f"{name}echo_mb_s": rates[1]}
        samples[f"{name}stream_to_echo"] = [a / b for a, b in zip(*rates, strict=True)]
    settings = {
        "nodes": NODES,
        "rounds": rounds,
        "steps_a_round": steps,
        "message_steps": message_steps,
        "megabytes": megabytes,
        "command": " ".join(sys.orig_argv[1:]),
        "versions": {name: version(name) for name in ("grpcio", "safetensors")},
    }
    return {**summarise(samples), "settings": settings}


def _figures(
    deployment: LocalDeployment, name: str, app: str, config: dict[str, Any], out: Path
) -> dict[str, Any]:
    """Run an app and return what it measured.

    Raises
    ------
    SandboxError
        With the run's log, if it failed.
    """
    run_id = deployment.submit(APPS / app, config_text(config))
    status, details = deployment.wait(run_id, timeout=900)
    file = out / f"{name}.json"
    if status != "finished:completed" or not file.exists():
        raise SandboxError(f"the run is {status} {details}: {deployment.log(run_id)}")
    figures: dict[str, Any] = json.loads(file.read_text())
    return figures


def summarise(samples: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians by name, the spread of each and which targets are met.

    `stream_ms` is an exchange without the slower client's computation (`clients_ms`), `step_ms` the
    time from one exchange to the next, `message_ms` a step by two Flower messages; `attach_s` and
    `finish_s` are a round's seconds before its first and after its last step. `stream_mb_s` and
    `echo_mb_s` count the bytes of all nodes in both directions; `stream_to_echo` is the median of
    the pairs' ratios.
    """
    spreads = {name: spread(values) for name, values in samples.items()}
    medians = {name: row["median"] for name, row in spreads.items()}
    ratio = medians["message_ms"] / medians["stream_ms"]
    return {
        **medians,
        "messages_to_stream": ratio,
        "targets": {
            "stream_ms": {
                "at_most": STREAM_MS,
                "met": medians["stream_ms"] <= STREAM_MS,
            },
            "stream_to_echo": {
                "at_least": STREAM_TO_ECHO,
                "met": medians["stream_to_echo"] >= STREAM_TO_ECHO,
            },
            "messages_to_stream": {
                "at_least": MESSAGES_TO_STREAM,
                "met": ratio >= MESSAGES_TO_STREAM,
            },
        },
        "spread": spreads,
    }


def print_table(figures: dict[str, Any]) -> None:
    rows = []
    for name, row in figures["spread"].items():
        digits = 0 if name.endswith("mb_s") else 2
        keys = ("median", "q1", "q3", "min", "max")
        rows.append([name, *(f"{row[key]:.{digits}f}" for key in keys)])
    heads = ("", "median", "q1", "q3", "min", "max")
    show(f"{NODES} SuperNodes on this machine, TLS", heads, rows)
    for name, target in figures["targets"].items():
        bound = f"<= {target['at_most']:g}" if "at_most" in target else f">= {target['at_least']:g}"
        met = "met" if target["met"] else "not met"
        print(f"{name} {figures[name]:.2f}, target {bound}: {met}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="a few steps: is it alive?")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, end_as_if_asked)
    figures = measure(1, 5, 1, 0.5) if options.quick else measure(3, 100, 5, 6.0)
    print_table(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
