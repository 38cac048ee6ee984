"""A third party's account of a run: epsilon and explanations, nothing about single clients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from flwr_splitmix.privacy.events import OUTSIDE, UNBOUNDED

MAX_ROUNDS = 1_000_000
"""Most rounds that an account may list."""


@dataclass(frozen=True, kw_only=True)
class RunAccount:
    """A ledger's summary of a run, for a reader who must not learn more about any client.

    Parameters
    ----------
    epsilon
        The largest epsilon of any client; infinite if there is no bound.
    unbounded_because, outside
        As in `Statement`, for all clients together.
    rounds
        The rounds that the ledger covers.

    Raises
    ------
    ValueError
        If epsilon is not a number of at least 0, a round is not a whole number from 1, or a text
        is not one that a ledger uses.
    """

    epsilon: float
    unbounded_because: tuple[str, ...]
    outside: tuple[str, ...]
    rounds: frozenset[int]

    def __post_init__(self) -> None:
        if type(self.epsilon) is not float or not self.epsilon >= 0:
            raise ValueError(f"epsilon is {self.epsilon!r}; it must be a number of at least 0")
        _check_words("unbounded_because", self.unbounded_because, UNBOUNDED.values())
        _check_words("outside", self.outside, OUTSIDE.values())
        if self.unbounded_because and not math.isinf(self.epsilon):
            raise ValueError("epsilon is a number, although there is no bound")
        if not all(type(number) is int and number >= 1 for number in self.rounds):
            raise ValueError("rounds must be whole numbers from 1")

    def to_plain(self) -> dict[str, Any]:
        """Return the values by name, the inverse of `from_plain`."""
        return {
            "epsilon": self.epsilon,
            "unbounded-because": list(self.unbounded_because),
            "outside": list(self.outside),
            "rounds": sorted(self.rounds),
        }

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Make an account from values by name.

        Raises
        ------
        ValueError
            If a name is unknown or missing, or a value is not allowed.
        """
        names = ("epsilon", "unbounded-because", "outside", "rounds")
        if values.keys() != set(names):
            raise ValueError(f"an account has {', '.join(names)}, and nothing else")
        lists = [values[name] for name in names[1:]]
        if not all(isinstance(each, list) for each in lists):
            raise ValueError(f"{', '.join(names[1:])} of an account must be lists")
        because, outside, rounds = lists
        if not all(isinstance(word, str) for word in (*because, *outside)):
            raise ValueError("the words of an account must be text")
        if len(rounds) > MAX_ROUNDS or not all(type(number) is int for number in rounds):
            raise ValueError("rounds must be whole numbers from 1")
        return cls(
            epsilon=values["epsilon"],
            unbounded_because=tuple(because),
            outside=tuple(outside),
            rounds=frozenset(rounds),
        )


def _check_words(name: str, words: tuple[str, ...], vocabulary: Iterable[str]) -> None:
    if not set(words) <= set(vocabulary):
        raise ValueError(f"{name} has words that no ledger has")
