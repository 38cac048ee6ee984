"""What the code of users may raise, and the errors whose messages may leave this machine."""

from __future__ import annotations

from itertools import pairwise
from traceback import walk_tb

FAULTS = (Exception, SystemExit)
"""What the code of a user may raise: sys.exit() of one that is called here is a failure like any
other, and no reason to end this process."""


class ForeseenError(Exception):
    """An error whose message says all, and nothing of the data; a server is told it.

    A subclass inherits also from the built-in error that fits. If its message has values, it needs
    an attribute `public`: what a server is told in place of the message.
    """


def by_signal(error: BaseException) -> bool:
    """Return whether an error was raised by the handler of a signal, which is to end the process.

    Python hands such a handler, and no other function, the frame that calls it.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return any(
        each is caller
        for caller, called in pairwise(frames)
        for given in called.f_locals.values()
        for each in (given if isinstance(given, tuple) else (given,))  # of lambda *_
    )
