"""Words in logs, errors and trackers: sanitised text of peers, paths without folders, reasons."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from decimal import ROUND_CEILING, Context

MAX_TEXT_CHARS = 500
"""Most characters of a peer's text that are logged, stored or put in an error."""


def one_line(text: str) -> str:
    r"""Return a peer's text as one line of at most 500 printable characters.

    Non-printable characters (line breaks, terminal escape sequences, bells, bidirectional
    controls) are escaped as in Python: a line break becomes ``\n``. So a peer can neither forge
    log lines nor flood the log.
    """
    start = text.strip()[:MAX_TEXT_CHARS]
    return "".join(c if c.isprintable() else _escaped(c) for c in start)[:MAX_TEXT_CHARS]


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


_COMMANDS = ("Cc", "Cs", "Zl", "Zp")
_REORDERING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def printable(text: str) -> str:
    """Return text with the characters that command a terminal escaped, as repr does."""
    if text.isprintable():
        return text
    return "".join(
        repr(each)[1:-1] if unicodedata.category(each) in _COMMANDS or each in _REORDERING else each
        for each in text
    )


def cause(error: BaseException, most: int = 200) -> str:
    """Return an error of others' code as one line: its type, and `most` characters of its text."""
    text = " ".join(str(error).split())[:most]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_ROOT = r"(?:~|[A-Za-z]:)?[/\\]"
_FOLDERS = re.compile(
    rf"""(?<=['"]){_ROOT}[^'"\n]*[/\\]  # quoted, perhaps with spaces
    | (?<![\w.:/\\~]){_ROOT}(?:[^'"\s/\\]+[/\\])+  # no part of a URL or of a fraction""",
    re.VERBOSE,
)


def without_folders(text: str) -> str:
    """Return a text with each absolute path replaced by its last part, as in ``.../labels.csv``.

    Names of folders tell a reader elsewhere about users and machines.
    """
    return _FOLDERS.sub(".../", text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 client", "2 clients" and "2 patches"."""
    if number == 1:
        return f"{number} {noun}"
    hissed = noun.endswith(("s", "ch")) and not noun.endswith("epoch")
    return f"{number} {noun}{'es' if hissed else 's'}"


def allowed_range(least: int, most: int) -> str:
    """Return the whole numbers that are allowed, as a remedy: "use 2 to 5", or "use 2"."""
    return f"use {least}" if least == most else f"use {least} to {most}"


def data_size(nbytes: float) -> str:
    """Return a number of bytes as "812 B", "12.3 kB", "12.3 MB" or "1.2 GB" (powers of 1000)."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes:.0f} B"


def gib(nbytes: float) -> str:
    """Return a number of bytes in GiB, such as "1.5 GiB"."""
    return f"{nbytes / 2**30:,.1f} GiB"


def with_article(noun: str) -> str:
    """Return a noun with its article, such as "a list" and "an Observer"."""
    return f"{'an' if noun[:1] in 'aeioAEIO' else 'a'} {noun}"


def described(value: object) -> str:
    """Return what a value is: "None", "a tensor (4, 3)", "a list of a str", "the class X".

    Of lists and tuples the first three entries are described, too; no value is shown.
    """
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(shape := getattr(value, "shape", None), tuple):
        return f"{with_article(type(value).__name__.lower())} {tuple(shape)}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {', '.join(map(described, value[:3])) or 'nothing'}"
    return with_article(type(value).__name__)


def listed(names: Iterable[object], most: int = 10) -> str:
    """Return names as text: "a and b", "a, b and c", or the first `most`: "a, b and 3 more"."""
    texts = [str(name) for name in names]
    if len(texts) > most:
        texts = [*texts[:most], f"{len(texts) - most} more"]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def verb(number: int, plural: str) -> str:
    """Return a verb for so many, from its plural: "has" or "have", "sends" or "send"."""
    if number != 1:
        return plural
    return {"are": "is", "were": "was", "have": "has"}.get(plural, f"{plural}s")


def are(number: int) -> str:
    """Return the verb of so many: "is" or "are"."""
    return verb(number, "are")


def have(number: int) -> str:
    """Return the verb of so many: "has" or "have"."""
    return verb(number, "have")


def not_attached(seconds: float) -> str:
    """Return why a client that did not come in time takes no part in a round."""
    return f"did not attach within {seconds:g} s (attach-timeout)"


def rounded_up(number: float, digits: int = 4) -> str:
    """Return a number with so many significant digits: the least such that is not below it."""
    shown = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(number)))
    return f"{float(shown):.{digits}g}"


def epsilon_text(epsilon: float) -> str:
    """Return an epsilon with four significant digits, rounded up: it is a bound."""
    return rounded_up(epsilon)
