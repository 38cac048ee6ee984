"""A private deployment: how long it waits for what it has started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from flwr_splitmix.sandbox.deployment import LocalDeployment
from flwr_splitmix.sandbox.superlink import SandboxError


@pytest.fixture
def deployment() -> Iterator[LocalDeployment]:
    """Return a deployment of one node that has not been started."""
    deployment = LocalDeployment(1)
    yield deployment
    deployment.stop()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("status", [0, 1])
def test_nobody_waits_for_a_supernode_that_has_ended(
    status: int, deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it has ended without an error."""
    monkeypatch.setattr(deployment, "online", lambda: 0)
    node = deployment.node(0)
    node.process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({status})"])
    assert node.process.wait() == status
    (deployment.home / "node-0.log").write_text("it has ended")
    with pytest.raises(SandboxError, match=r"^0 of 1 SuperNodes are connected: it has ended"):
        deployment.wait_until_online(1)


@pytest.mark.timeout(120)
def test_nobody_waits_for_a_superlink_that_has_ended(deployment: LocalDeployment) -> None:
    with pytest.raises(SandboxError, match=r"(?s)the SuperLink did not start: .*no-such-option"):
        deployment._start_superlink(["--no-such-option"], "insecure = true")
