"""The errors whose messages may leave the machine that raises them."""

from __future__ import annotations


class ForeseenError(Exception):
    """An error whose message says all, and nothing of the data; a server is told it.

    A subclass inherits also from the built-in error that fits. If its message has values, it needs
    an attribute `public`: what a server is told in place of the message.
    """
