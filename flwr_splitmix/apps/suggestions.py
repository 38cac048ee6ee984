"""What a user may have meant by a word that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_ALL = 8  # so many are listed; of more, those that are spelled alike


def close_to(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known words that are spelled much like `word`, the most alike first."""
    by_spelling: dict[str, list[str]] = {}
    for name in known:
        by_spelling.setdefault(name.casefold(), []).append(name)
    alike = difflib.get_close_matches(word.casefold(), by_spelling, n=most, cutoff=0.6)
    return [name for spelling in alike for name in by_spelling[spelling]][:most]


def either(words: Iterable[str]) -> str:
    """Join words in quotes: "'a', 'b' or 'c'"."""
    *others, last = map(repr, words)
    return f"{', '.join(others)} or {last}" if others else last


def allowed(word: str, known: Iterable[str], where: str) -> str:
    """Say what is allowed instead of `word`: all of a few; of many, those spelled alike.

    Parameters
    ----------
    where
        Where all of many are listed.
    """
    names = list(known)
    alike = close_to(word, names)
    meant = f"did you mean {either(alike)}? " if alike else ""
    if len(names) <= _ALL:
        return f"{meant}allowed are {', '.join(map(repr, names))}"
    if alike:
        return f"{meant}{where} lists all {len(names)}"
    return f"{where} lists the {len(names)} that are allowed"
