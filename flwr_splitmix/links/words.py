"""The words of a peer, made fit for a log: one line, short, without control characters."""

from __future__ import annotations

MAX_WORDS = 500
"""Most characters of a peer's text that are logged, stored or raised."""


def one_line(text: str) -> str:
    r"""Return a peer's text as one line of at most 500 printable characters.

    What is not printable (line breaks, escape sequences of terminals, bells, characters that turn
    the direction of writing) is escaped as in Python: a line break becomes ``\n``. So no peer can
    forge a line of the log, or fill it.
    """
    start = text.strip()[:MAX_WORDS]
    return "".join(c if c.isprintable() else _escaped(c) for c in start)[:MAX_WORDS]


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
