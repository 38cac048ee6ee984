"""Errors whose messages could reveal a client's data, and are kept from the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flwr_splitmix.clients.client import ClientError, WrappedError


@contextmanager
def restrained(message: str, *, hides: bool) -> Iterator[None]:
    """Keep the message of a ClientError in this client's log if it could reveal data.

    Parameters
    ----------
    message
        The message for the server in its place, whatever the data are.
    hides
        Whether noise covers the data, or nothing may leave without an epsilon: a record's shape,
        type or values in an error would themselves be a release.

    Raises
    ------
    ClientError
        As within the block; `WrappedError` if it hides them.
    """
    try:
        yield
    except ClientError as error:
        if not hides:
            raise
        raise WrappedError(f"{message}; the log of its node says more", str(error)) from error
