"""A limit on a peer's silence: gRPC notices a process that is gone, and not one that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

LOOK_SECONDS = 1.0


class SilenceLimit:
    """Hangs up once a peer has been awaited for too long; a context manager.

    Its thread checks once a second, so that a wait costs nothing.

    Parameters
    ----------
    seconds
        Longest wait, for a message or for whatever `waiting` surrounds.
    hang_up
        Called from another thread, once, when it is over; must make the wait end.

    Attributes
    ----------
    seconds
        May be changed at any time.
    exceeded
        Whether it hung up.
    """

    def __init__(self, seconds: float, hang_up: Callable[[], object]) -> None:
        self.seconds = seconds
        self.exceeded = False
        self._hang_up = hang_up
        self._since: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="splitmix-silence", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside the block as one wait."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def awaited(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        """Yield messages; only the waits for them count, each for itself."""
        while True:
            with self.waiting():
                try:
                    message = next(messages)
                except StopIteration:
                    return
            yield message

    def _seconds_left(self) -> float:
        since = self._since
        return self.seconds if since is None else since + self.seconds - time.monotonic()

    def _watch(self) -> None:
        while not self._over.wait(min(self._seconds_left(), LOOK_SECONDS)):
            if self._seconds_left() <= 0:
                self.exceeded = True
                self._hang_up()
                return
