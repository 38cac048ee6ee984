"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(event: str, true: Callable[[], object], timeout: float = 60.0) -> None:
    """Wait until something is true.

    Raises
    ------
    AssertionError
        Naming it, if it is not within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, f"{event} has not happened within {timeout:g} s"
        time.sleep(0.02)
