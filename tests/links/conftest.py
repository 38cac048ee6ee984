"""Tests of links run outside of Flower runs."""

from __future__ import annotations

import pytest

from flwr_splitmix.links import polling
from tests.links.fake_grid import question


@pytest.fixture(autouse=True)
def _questions_outside_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give messages explicit metadata; without it they can be made inside a run only."""
    monkeypatch.setattr(polling, "_question", question)
