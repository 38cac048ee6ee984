"""One SuperLink for the real runs of a session, and a look-out for what they leave behind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from flwr_splitmix.sandbox.flower import LocalFlower
from tests.e2e.flower_run import Runner
from tests.e2e.processes import Watch
from tests.waiting import wait_for


@pytest.fixture(scope="session")
def watch() -> Iterator[Watch]:
    """Fail the session if a process that an end-to-end test started is left at its end."""
    watch = Watch()
    yield watch
    # The two agents of a Ray session that was cut off wait a minute for it to come back.
    with contextlib.suppress(AssertionError):
        wait_for("the end of all processes", lambda: not watch.left(), 240)
    leftovers = watch.left()
    watch.end()
    watch.kill_left()
    assert not leftovers, "these processes were left behind: " + "; ".join(leftovers)


@pytest.fixture(scope="session")
def superlink(watch: Watch) -> Iterator[Runner]:
    with LocalFlower() as flower:
        yield Runner(flower, watch)


@pytest.fixture
def runner(superlink: Runner) -> Iterator[Runner]:
    """Start runs on the session's SuperLink; a failed test's run does not disturb the next."""
    yield superlink
    superlink.end_runs()
