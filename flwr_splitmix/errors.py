"""Errors that users' code may raise, and errors whose messages may leave this machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import pairwise
from traceback import walk_tb
from types import FrameType

FAULTS = (Exception, SystemExit)
"""Errors that a user's code may raise: sys.exit() of one that is called here is a failure like any
other, and no reason to end this process."""


class ForeseenError(Exception):
    """An error whose message says all, and nothing of the data; a server is told it.

    A subclass inherits also from the built-in error that fits. If its message has values, it needs
    an attribute `public`: what a server is told in place of the message.
    """


def by_signal(error: BaseException) -> bool:
    """Return whether an exit comes from the handler of a signal, which is to end the process.

    Or from code that has caught such an exit. No other error does. Python hands a handler, and no
    other function, the frame that calls it; one that does not keep it is known as a handler that is
    set now.
    """
    if not isinstance(error, SystemExit):
        return False
    handlers = {getattr(getattr(one, "__func__", one), "__code__", None) for one in _handlers()}
    return any(
        called.f_code in handlers or _has(called, caller)
        for each in _chain(error)
        for caller, called in pairwise([frame for frame, _ in walk_tb(each.__traceback__)])
    )


def _has(called: FrameType, caller: FrameType) -> bool:
    """Return whether a frame's values include the one that called it; values are not compared."""
    values = called.f_locals.values()
    return any(
        each is caller
        for argument in values
        for each in (argument if isinstance(argument, tuple) else (argument,))  # of lambda *_
    )


def _handlers() -> list[object]:
    return [signal.getsignal(number) for number in signal.valid_signals()]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and those during which it was raised."""
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        yield cause
        visited.add(id(cause))
        cause = cause.__cause__ or cause.__context__
