"""Errors of this side in one line, for its own log and for the other side."""

from __future__ import annotations

from functools import partial

from flwr_splitmix.clients import WrappedError
from flwr_splitmix.errors import ForeseenError
from flwr_splitmix.overriding import of_package
from flwr_splitmix.words import one_line, without_folders


def sentence(error: BaseException) -> str:
    """Describe an error in one line: the first line of its text.

    Its type is left out if its text is complete, as that of a `ForeseenError` is.
    """
    text = str(error).strip()
    first = one_line(text.splitlines()[0]) if text else ""
    if isinstance(error, ForeseenError) and first:
        return first
    return one_line(f"{type(error).__name__}: {first}") if first else type(error).__name__


def public_sentence(error: BaseException, log: str = "the log of its node") -> str:
    """Describe an error in one line, without text that may contain data.

    The message of a `ForeseenError` is kept, without names of folders, or what it has as `public`
    instead, if its message has values; other errors are named by type only, with the `log` that has
    their text.
    """
    if isinstance(error, ForeseenError):
        return without_folders(one_line(getattr(error, "public", "")) or sentence(error))
    return f"{type(error).__name__}; {log} says more"


def own_sentence(error: BaseException) -> str:
    """Describe an error in one line for this side's own log, with the text of a wrapped one."""
    return one_line(error.whole) if isinstance(error, WrappedError) else sentence(error)


def is_unexpected(error: BaseException) -> bool:
    """Return whether a traceback has more than a sentence: for errors of no type of this package.

    Of a `WrappedError` it is the wrapped one that counts.
    """
    raised = error.__cause__ if isinstance(error, WrappedError) else error
    return not any(of_package(kind) for kind in type(raised).__mro__)


local_sentence = partial(public_sentence, log="the log")
"""`public_sentence` of a client in the server's own process or simulation, which share a log."""
