"""Set-up for tests of links, which run outside Flower runs."""

from __future__ import annotations

import pytest

from flwr_splitmix.links import directory
from tests.links.fake_grid import question


@pytest.fixture(autouse=True)
def _questions_outside_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give messages explicit metadata, without which they can only be made inside a run."""
    monkeypatch.setattr(directory, "_question", question)
