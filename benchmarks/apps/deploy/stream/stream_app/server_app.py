"""The ServerApp: times LeNet-5's steps over the stream link, or payloads beside a bare echo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from benchmarks.apps.steps.step_app.lenet import CLASSES, lenet

from .bare_echo import BareEcho
from .timed import WARM_UP, Payloads, TimedLink, TimedPSL

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Measure, and write the figures."""
    config = dict(context.run_config)
    link = TimedLink(
        certificate=config["ssl-certfile"],
        key=config["ssl-keyfile"],
        ca=config["ssl-ca-certfile"],
        address="127.0.0.1:0",
    )
    figures = (time_payloads if config["what"] == "payloads" else time_steps)(grid, config, link)
    (Path(str(config["out"])) / f"{config['what']}.json").write_text(json.dumps(figures))


def time_steps(grid: Grid, config: dict[str, Any], link: TimedLink) -> dict[str, Any]:
    """Return milliseconds of steps, of their exchanges less the clients' computing, and of that."""
    model, rounds, nodes = lenet(), int(config["rounds"]), int(config["nodes"])
    strategy = TimedPSL(
        model.upper,
        num_classes=CLASSES,
        server_update="sum",
        optimizer=model.optimizer,
        device="cpu",
        steps_per_round=WARM_UP + int(config["repeats"]),
        min_nodes=nodes,
        link=link,
    )
    strategy.start(grid, ArrayRecord(model.lower.state_dict()), num_rounds=rounds)
    stream, computed = [], []
    for server_round, exchanges in enumerate(strategy.exchange_ms, start=1):
        files = [
            Path(str(config["out"])) / f"computed-{server_round}-{client}.json"
            for client in range(nodes)
        ]
        slowest = list(map(max, *(json.loads(file.read_text()) for file in files)))
        # Without the exchange that ends the round: it has no forward.
        for exchange, computing in list(zip(exchanges, slowest, strict=True))[WARM_UP:-1]:
            stream.append(exchange - computing)
            computed.append(computing)
    return {
        "stream_ms": stream,
        "clients_ms": computed,
        "step_ms": [step for steps in strategy.step_ms for step in steps],
        "attach_s": link.attach_s,
        "finish_s": link.finish_s,
    }


def time_payloads(grid: Grid, config: dict[str, Any], link: TimedLink) -> dict[str, Any]:
    """Return milliseconds there and back, by number of nodes at once."""
    nodes, megabytes = int(config["nodes"]), float(config["megabytes"])
    files = Path(str(config["ssl-certfile"])), Path(str(config["ssl-keyfile"]))
    bare = BareEcho(range(nodes), *files)
    ca = Path(str(config["ssl-ca-certfile"])).read_text()
    strategy = Payloads(megabytes, int(config["repeats"]), bare, ca, nodes, link=link)
    try:
        strategy.start(grid, ArrayRecord({"none": torch.zeros(1)}), num_rounds=1)
    finally:
        bare.stop()
    return {"stream_ms": strategy.stream_ms, "echo_ms": strategy.echo_ms}
