"""One deployment for all faults; each must leave it as it was: no process, no file, no thread."""

from __future__ import annotations

import importlib
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from flwr_splitmix.sandbox.deployment import LocalDeployment
from tests.e2e.flower_run import Deployed
from tests.faults.faulty_run import APP, leftovers
from tests.waiting import wait_for

NODES = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a fault on a busy machine take its time."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(1200))


KEPT = re.compile(
    r"node-\d/states/([\w-]+/(\d/round-\d{6}\.safetensors|owner)|(audit|privacy-ledger)-\d\.jsonl)"
)


@pytest.fixture(scope="session")
def deployment() -> Iterator[LocalDeployment]:
    with LocalDeployment(NODES, environment={"OMP_NUM_THREADS": "1"}) as deployment:
        yield deployment
    assert deployment.processes() == []
    assert not deployment.home.exists()


@pytest.fixture
def deployed(deployment: LocalDeployment) -> Iterator[Deployed]:
    """Look after a test for what it has left: its run's processes, half-written files, threads."""
    before = set(threading.enumerate())
    deployment.wait_until_online(NODES)
    yield Deployed(deployment)
    wait_for("the end of the run's processes", lambda: not leftovers(deployment), 120)
    for node in deployment.nodes:
        files = [path for path in node.state_dir.rglob("*") if path.is_file()]
        odd = [str(f) for f in files if not KEPT.fullmatch(str(f.relative_to(deployment.home)))]
        assert odd == []
    wait_for("the end of the test's threads", lambda: set(threading.enumerate()) <= before)


@pytest.fixture(scope="session")
def app() -> Iterator[ModuleType]:
    """Import the app's module, for the same run in this process."""
    sys.path.insert(0, str(APP))
    yield importlib.import_module("fault_app")
    sys.path.remove(str(APP))
    sys.modules.pop("fault_app", None)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return where a deployed run has its directory."""
    return tmp_path / "deployed"
