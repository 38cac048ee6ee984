"""Suggestions for an unknown word in a user's input."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MAX_LISTED = 8  # up to this number, all words are listed; beyond, only similar ones


def close_to(word: str, words: Iterable[str], most: int = 3) -> list[str]:
    """Return at most `most` known words with a spelling similar to `word`, the closest first."""
    by_spelling: dict[str, list[str]] = {}
    for name in words:
        by_spelling.setdefault(name.casefold(), []).append(name)
    alike = difflib.get_close_matches(word.casefold(), by_spelling, n=most, cutoff=0.6)
    return [name for spelling in alike for name in by_spelling[spelling]][:most]


def either(words: Iterable[str]) -> str:
    """Join quoted words: "'a', 'b' or 'c'"."""
    *others, last = map(repr, words)
    return f"{', '.join(others)} or {last}" if others else last


def allowed(word: str, words: Iterable[str], where: str) -> str:
    """Return the message that names the words allowed instead of `word`.

    It lists all known words if they are few, else those of similar spelling.

    Parameters
    ----------
    where
        Where all known words are listed if they are many.
    """
    names = list(words)
    alike = close_to(word, names)
    suggestion = f"did you mean {either(alike)}? " if alike else ""
    if len(names) <= _MAX_LISTED:
        return f"{suggestion}it must be one of {', '.join(map(repr, names))}"
    if alike:
        return f"{suggestion}{where} lists all {len(names)}"
    return f"{where} lists the {len(names)} that are allowed"


def is_near(one: str, other: str) -> bool:
    """Return whether at most one letter is added, missing or another, or two are swapped."""
    while one and one[:1] == other[:1]:
        one, other = one[1:], other[1:]
    swapped = other[1::-1] + other[2:]
    return one[1:] == other[1:] or one[1:] == other or one == other[1:] or one == swapped


def folded_key(key: str) -> str:
    """Return a key without its case and what separates its words."""
    return key.casefold().replace("-", "").replace("_", "")
