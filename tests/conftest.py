"""Set-up of all tests: one thread and a seed, so that they repeat in any order, side by side."""

import gc
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import flwr_splitmix  # noqa: F401  # says how threads wait, which torch reads when it is loaded

# isort: split
import torch

from flwr_splitmix.seeding import seeded_secrets

pytest_plugins = ["tests.e2e.one_flower"]

torch.set_num_threads(1)

# Hypothesis would draw other examples every time, and fail a test for the time they take.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files with slow tests first: then all workers have something to do until the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Keep what the imports have made out of later collections of garbage, which tests ask for."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def unflushed() -> Iterator[None]:
    """Leave it to the system when files reach the disk: no test of this process cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def outside_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a server's questions explicit metadata: without it they can be made in a run only."""
    from flwr_splitmix.links import directory
    from tests.links.fake_grid import question

    monkeypatch.setattr(directory, "_question", question)


@pytest.fixture(autouse=True)
def seeded_draws() -> None:
    """Give each test the same public random numbers, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)


@pytest.fixture(scope="module")
def frozen_objects() -> None:
    """Keep what earlier tests have left out of `gc.get_objects`, and of collections of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def repeatable(seeded_draws: None) -> Iterator[None]:
    """Draw secrets from torch's seeded generator: a rare secret defeats a single attempt."""
    with seeded_secrets():
        yield


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files and folders that are flushed to the disk from now on, in their order."""
    paths: list[Path] = []
    really = os.fsync

    def fsync(handle: int) -> None:
        paths.append(Path(f"/proc/self/fd/{handle}").readlink())
        really(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


@pytest.fixture(scope="session")
def toy_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with tiny runs (`tests.toy_runs`), which no test changes."""
    from tests.toy_runs import make_home

    return make_home(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def impatient() -> Iterator[None]:
    """Fail a test that waits: opening a pipe without a writer would take forever."""

    def fail(*_: object) -> None:
        raise TimeoutError("it waited")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
