"""What is done once for each thing, as a warning is logged once for each client."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, TypeVar

__all__ = ["Once"]

Key = TypeVar("Key", bound=Hashable)


class Once:
    """Knows for which keys something was done, so that it is not done again.

    One object may serve several things: their keys tell them apart, such as "few" and ("lost", 3).
    """

    def __init__(self) -> None:
        self._keys: set[Any] = set()

    def __contains__(self, key: Hashable) -> bool:
        """Return whether a key was asked for before; this does not ask for it."""
        return key in self._keys

    def first(self, key: Hashable) -> bool:
        """Return whether a key is asked for the first time."""
        new = key not in self._keys
        self._keys.add(key)
        return new

    def new(self, keys: Iterable[Key]) -> list[Key]:
        """Return those of some keys, in their order, that are asked for the first time."""
        return [key for key in keys if self.first(key)]

    def forget(self) -> None:
        """Forget all keys: each is asked for the first time again."""
        self._keys.clear()

    def state(self) -> list[Any]:
        """Return the keys, sorted, for a checkpoint: they are all text, or all numbers."""
        return sorted(self._keys)

    def restore(self, keys: Iterable[Hashable]) -> None:
        """Take these keys for asked for, too."""
        self._keys.update(keys)
