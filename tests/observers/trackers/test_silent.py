"""What libraries of trackers send beside a run: nothing about the machine, nor to their makers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

CHOSEN = {"WANDB_ERROR_REPORTING", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "CI"}


def hosts_looked_up(names: str, folder: Path, **variables: str) -> list[str]:
    """Do a run in another process, in which nothing says that it is a test."""
    inherited = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    quiet = {name: value for name, value in inherited.items() if not name.startswith("PYTEST")}
    process = subprocess.run(
        [sys.executable, "-m", "tests.observers.trackers.looked_up", names, str(folder)],
        env={**quiet, "HOME": str(folder), "WANDB_SILENT": "true", **variables},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-2000:]
    lines = [line for line in process.stdout.splitlines() if line.startswith("looked up:")]
    return lines[-1].split()[2:]


def test_trackers_that_write_to_the_disk_look_up_no_host(tmp_path: Path) -> None:
    """Left to themselves, both libraries report their use to their makers, W&B even offline."""
    pytest.importorskip("wandb")
    pytest.importorskip("mlflow")
    assert hosts_looked_up("wandb-offline,mlflow", tmp_path) == []


def test_reports_on_use_that_the_environment_asks_for_are_its_own_matter(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    hosts = hosts_looked_up("mlflow", tmp_path, MLFLOW_DISABLE_TELEMETRY="false")
    assert [host for host in hosts if "telemetry" in host]


def answer(body: bytes) -> dict[str, Any]:
    """Say what a W&B says: without it, the library's own process ends before it has sent all."""
    request = json.loads(body)
    names = request.get("variables", {})
    match request.get("operationName"):
        case "UpsertBucket":
            project = {"id": "1", "name": names["project"], "entity": {"id": "1", "name": "us"}}
            run = {"id": "1", "name": names["name"], "displayName": names["name"], "config": "{}"}
            return {"upsertBucket": {"inserted": True, "bucket": {**run, "project": project}}}
        case "CreateRunFiles":
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}}
        case _:
            return {}


@pytest.fixture
def received() -> Iterator[tuple[str, list[bytes]]]:
    """Serve a W&B that keeps nothing; yield its address and the bodies that it gets."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers.get("content-length", 0))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": answer(bodies[-1])}).encode())

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
            """Keep the output of the tests free of it."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()
        thread.join()


def test_wandb_gets_no_path_of_the_program(
    tmp_path: Path, received: tuple[str, list[bytes]]
) -> None:
    pytest.importorskip("wandb")
    address, bodies = received
    hosts_looked_up("wandb", tmp_path, WANDB_BASE_URL=address, WANDB_API_KEY="a" * 40)
    whole = b"\n".join(bodies)
    assert b'"program":"splitmix"' in whole
    assert b"accuracy" in whole
    assert b'"exitcode":0' in whole
    assert b"looked_up" not in whole
    assert os.getcwd().encode() not in whole
