"""Set-up for tests of links, which run outside Flower runs."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _outside_of_a_run(outside_of_a_run: None) -> None:
    """Let every test here ask nodes from outside a Flower run."""
