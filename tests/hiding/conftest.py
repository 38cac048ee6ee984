"""The hidings' tests draw the same secrets every time, but where they are about drawing them."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def repeatable_secrets(request: pytest.FixtureRequest) -> None:
    """Apply `repeatable` to every test here but those marked `fresh_secrets`."""
    if request.node.get_closest_marker("fresh_secrets") is None:
        request.getfixturevalue("repeatable")
