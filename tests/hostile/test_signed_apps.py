"""SuperNodes that run signed apps only: `flower-supernode --trusted-entities`.

A SuperLink has an app's signatures from Flower Hub alone. Here a page on the loopback stands in for
the hub; what signs, sends and checks is Flower's own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from flwr_splitmix.sandbox.deployment import LocalDeployment
from tests.apps import vision_app
from tests.e2e.flower_run import TINY, Deployed, Ended

pytestmark = pytest.mark.slow

REVIEWER = "fpk_00000000-0000-0000-0000-000000000000"
VALUES = {**TINY, "strategy": "PSL", "num-server-rounds": 1, "min-nodes": 1}
REFUSED = "The FAB could not be verified."


class Hub(HTTPServer):
    """Hands out one app, with the signature of whoever is its `signer`."""

    def __init__(self, app: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.app = app
        self.signer = Ed25519PrivateKey.generate()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def described(self) -> dict[str, Any]:
        """Say where the app is and who has signed it, as `flwr app review` does."""
        timestamp = int(time.time())
        signed = timestamp.to_bytes(8, "big") + hashlib.sha256(self.app).digest()
        signature = base64.urlsafe_b64encode(self.signer.sign(signed)).rstrip(b"=").decode()
        review = {"public_key_id": REVIEWER, "signature": signature, "signed_at": timestamp}
        return {"fab_url": f"{self.url}/app", "verifications": [review]}


class Page(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self._answer(self.server.app)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(json.dumps(self.server.described()).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        return None


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("built")
    flwr = Path(sys.executable).with_name("flwr")
    subprocess.run([flwr, "build", "--app", vision_app.APP], cwd=folder, check=True)
    (built,) = folder.glob("*.fab")
    hub = Hub(built.read_bytes())
    yield hub
    hub.shutdown()
    hub.server_close()


@pytest.fixture(scope="module")
def deployed(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    public = hub.signer.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    trusted = tmp_path_factory.mktemp("trusted") / "trusted.yaml"
    trusted.write_text(f"{REVIEWER}: {public.decode()}\n")
    environment = {"OMP_NUM_THREADS": "1", "FLWR_SUPERGRID_API_URL": hub.url}
    options = ["--trusted-entities", str(trusted)]
    with LocalDeployment(1, environment=environment, node_options=options) as deployment:
        yield Deployed(deployment)


def run(deployed: Deployed, app: Path, home: Path, attach_timeout: float = 60.0) -> Ended:
    return deployed.run({**VALUES, "attach-timeout": attach_timeout}, home, app=app)


FROM_HUB = Path("@flwr-splitmix") / "splitmix-vision==1.0.0"
"""With a version, since a SuperLink keeps the latest one and asks no more who has signed it."""


def test_an_app_without_a_signature_is_not_run(deployed: Deployed, tmp_path: Path) -> None:
    ended = run(deployed, vision_app.APP, tmp_path)
    assert ended.status == "finished:failed", ended.log
    assert REFUSED in ended.log


def test_a_signed_app_is_run(deployed: Deployed, tmp_path: Path) -> None:
    # On a busy machine a node needs longer to start its ClientApp.
    ended = run(deployed, FROM_HUB, tmp_path, attach_timeout=240.0)
    assert ended.status == "finished:completed", ended.log


def test_an_app_that_somebody_else_has_signed_is_not_run(
    deployed: Deployed, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "signer", Ed25519PrivateKey.generate())
    ended = run(deployed, FROM_HUB, tmp_path)
    assert ended.status == "finished:failed", ended.log
    assert REFUSED in ended.log
