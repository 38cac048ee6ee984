"""A set of keys that have been seen, for warnings that are logged once for each client, say."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, TypeVar

__all__ = ["SeenKeys"]

Key = TypeVar("Key", bound=Hashable)


class SeenKeys:
    """Keys for which something was done, so that it is not done again.

    One object may serve several things: their keys tell them apart, such as "few" and ("lost", 3).
    """

    def __init__(self) -> None:
        self._keys: set[Any] = set()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def add(self, key: Hashable) -> bool:
        """Add a key; return whether it is new."""
        is_new = key not in self._keys
        self._keys.add(key)
        return is_new

    def add_all(self, keys: Iterable[Key]) -> list[Key]:
        """Add keys; return those that are new, in their order."""
        return [key for key in keys if self.add(key)]

    def clear(self) -> None:
        """Remove all keys."""
        self._keys.clear()

    def state(self) -> list[Any]:
        """Return the keys, sorted, for a checkpoint: they are all text, or all numbers."""
        return sorted(self._keys)

    def restore(self, keys: Iterable[Hashable]) -> None:
        """Add the keys of a checkpoint."""
        self._keys.update(keys)
