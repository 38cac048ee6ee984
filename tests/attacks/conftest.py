"""The attacks' tests draw the same secrets every time."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def repeatable_secrets(repeatable: None) -> None:
    """Apply `repeatable` to every test here."""
