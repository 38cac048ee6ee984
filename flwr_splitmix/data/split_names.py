"""Names that a test split may have, and the error for a data set without one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flwr_splitmix.data.errors import DataError

TEST_SPLITS = ("test", "validation", "val", "valid")
"""The first that exists is used."""


def no_test_split(name: str | Path, splits: Sequence[str] = TEST_SPLITS) -> DataError:
    """Return the error for a source that has no split under any of the names in `splits`."""
    *others, last = splits
    named = f"{', '.join(others)} or {last}" if others else last
    return DataError(f"{str(name)!r} has no test split; one named {named} is needed beside 'train'")
