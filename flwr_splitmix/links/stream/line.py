"""One client's line in a round: one call at a time, over whatever connection carries it.

The client sends `hello` once a connection (number: the last call that it answered; payload: its
description) and gets a `hello` back, then a `reply` or an `error` to each `call`. The server sends
calls, numbered from 1, and at last `finish` or `leave`. A connection may break at any moment: the
call in flight is sent again on the next one, and the client repeats the reply that it has stored,
so that no call is run twice. Frames about other calls than the one in flight change nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from flwr_splitmix.links.frames.codec import MAX_BODY, Frame, decode
from flwr_splitmix.links.frames.feedback import Feedback
from flwr_splitmix.links.frames.payload import CodecError
from flwr_splitmix.links.frames.wire import WireDtype
from flwr_splitmix.links.link import Outcome, tensor_bytes
from flwr_splitmix.links.stream.limits import reply_limit
from flwr_splitmix.links.stream.protocol import HELLO_BODY, in_pieces
from flwr_splitmix.links.words import one_line


class Connection(Protocol):
    """What a line needs of a connection; its methods are called from any thread."""

    def is_active(self) -> bool:
        """Return whether the connection still stands."""

    def wake(self) -> None:
        """Have it ask for the next frame; called under the line's lock, without delay."""

    def cancel(self) -> None:
        """End it."""


class LiveLineError(Exception):
    """Another connection holds the line, and it stands."""


class ClosedLineError(Exception):
    """The client takes no part in the round any more; the sentence says why."""


@dataclass
class _Call:
    number: int
    method: str
    payload: Mapping[str, Any]
    began: float
    frame: list[bytes] | None = None
    outcome: Outcome | None = None


class Line:
    """The server's end of a line; its methods may be called from any thread.

    Parameters
    ----------
    changed
        Called, without an argument and without delay, when `outcome`, `description`, `failure` or
        `lost_since` may have changed.
    wire
        Format of activations and gradients on their way to the client.
    max_body
        Largest body in bytes that is taken from the client.
    seed
        Of formats that round by chance.
    feedback
        Adds what rounding has left of gradients to the next ones; None leaves them as they are.

    Attributes
    ----------
    description
        What the client said of itself when it attached; None before.
    failure
        Why the line can carry no call any more; None while it can.
    lost_since
        When the connection broke (`time.monotonic`); None while one stands, or before the first.
    """

    def __init__(
        self,
        changed: Callable[[], None],
        wire: WireDtype = "keep",
        max_body: int = MAX_BODY,
        seed: int = 0,
        feedback: Feedback | None = None,
    ) -> None:
        self.description: dict[str, Any] | None = None
        self.failure: str | None = None
        self.lost_since: float | None = None
        self._changed = changed
        self._wire = wire
        self._max_body = max_body
        self._seed = seed
        self._feedback = feedback
        self._longest_reply = max_body
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._said_hello = False
        self._number = 0
        self._sent = 0
        self._call: _Call | None = None
        self._ending: Frame | None = None

    # The strategy's side.

    def submit(self, method: str, payload: Mapping[str, Any]) -> None:
        """Start a call; `outcome` will hold what becomes of it."""
        with self._lock:
            self._number += 1
            self._call = _Call(self._number, method, payload, time.monotonic())
            self._longest_reply = reply_limit(self.description or {}, payload, self._max_body)
            if self.failure is not None:
                self._call.outcome = Outcome(None, self.failure)
                self._changed()
            self._wake()

    @property
    def outcome(self) -> Outcome | None:
        """What became of the call that was submitted last; None while it is in flight."""
        with self._lock:
            return None if self._call is None else self._call.outcome

    def end(self, kind: Literal["finish", "leave"], text: str = "") -> None:
        """Tell the client that the round is over for it; it may be told only once."""
        with self._lock:
            if self._ending is not None:
                return
            self._ending = Frame(kind, text=text)
            self._wake()
            # Whoever owes an answer, or does not read, would not get to see the frame.
            stuck = self._in_flight() or not self._said_hello
            connection = self._connection if stuck else None
        if connection is not None:
            connection.cancel()

    def drop(self) -> None:
        """End the connection, if there is one."""
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.cancel()

    # The connection's side.

    @property
    def call_bytes(self) -> int:
        """Bytes of the tensors of the call in flight; 0 if there is none."""
        with self._lock:
            return 0 if self._call is None else tensor_bytes(self._call.payload)

    @property
    def longest_body(self) -> int:
        """Most bytes of tensors that the connection's next frame may have."""
        return self._longest_reply if self._said_hello else min(HELLO_BODY, self._max_body)

    def connect(self, connection: Connection) -> None:
        """Give the line to a new connection.

        Raises
        ------
        LiveLineError
            If another connection has it, and stands.
        ClosedLineError
            If the client was left out of the round.
        """
        with self._lock:
            if self.failure is not None:
                raise ClosedLineError(self.failure)
            if self._ending is not None and self._ending.kind == "leave":
                raise ClosedLineError(self._ending.text)
            if self._connection is not None and self._connection.is_active():
                raise LiveLineError
            self._wake()  # the one that has ended
            self._connection = connection
            self._said_hello = False
            self._sent = 0

    def hello(self, connection: Connection, data: bytes | Sequence[bytes]) -> None:
        """Take a connection's first frame, whole or in its messages."""
        with self._lock:
            if connection is not self._connection:
                return
            frame = self._decode(data)
            if frame is None:
                return
            answered = {self._number, self._number - 1} if self._in_flight() else {self._number}
            if frame.kind != "hello":
                self._fail(f"began with a {frame.kind} frame, not with hello")
            elif frame.number not in answered:
                self._fail("has lost the steps of this round that came before")
            else:
                if self.description is None:
                    self.description = dict(frame.payload)
                self._said_hello = True
                self.lost_since = None
                self._changed()

    def next_frame(self, connection: Connection) -> tuple[list[bytes], bool] | None:
        """Return what is to be sent now: (messages of a frame, whether it is the last).

        Returns
        -------
        No messages if there is nothing to send until the connection is woken; None if it has
        ended, or another one has the line.
        """
        while True:
            with self._lock:
                if connection is not self._connection or not connection.is_active():
                    return None
                if not self._wanted():
                    return [], False
                if self.failure is not None:
                    return in_pieces(Frame("leave", text=self.failure)), True
                call = self._call
                if call is None or call.outcome is not None:
                    assert self._ending is not None
                    return in_pieces(self._ending), True
                self._sent = call.number
            if (frame := self._encoded(call)) is not None:
                return frame, False

    def _wanted(self) -> bool:
        unsent = self._in_flight() and self._sent != self._number
        return unsent or self.failure is not None or self._ending is not None

    def _encoded(self, call: _Call) -> list[bytes] | None:
        """Return a call's messages, which are made once, outside of the lock."""
        if call.frame is None:
            payload = call.payload
            if self._feedback is not None:
                payload = self._feedback.correct(call.number, payload)
            frame = Frame("call", call.number, call.method, payload)
            try:
                call.frame = in_pieces(frame, self._wire, self._max_body, self._seed)
            except CodecError as error:
                with self._lock:
                    self._answer(Outcome(None, f"could not be sent its call: {error}"))
                return None
        return call.frame

    def receive(self, connection: Connection, data: bytes | Sequence[bytes]) -> bool:
        """Take a frame that is not the first; returns whether it answered the call in flight."""
        with self._lock:
            if connection is not self._connection:
                return False
            call = self._call
        frame = self._decode(data)
        if frame is None:
            return True
        with self._lock:
            if connection is not self._connection or call is None or call is not self._call:
                return False
            if frame.kind not in ("reply", "error"):
                self._fail(f"sent a {frame.kind} frame in the midst of a round")
                return True
            if frame.number != call.number or call.outcome is not None:
                return False
            seconds = time.monotonic() - call.began
            if frame.kind == "error":
                self._answer(Outcome(None, one_line(frame.text) or "gave no reason", seconds))
            else:
                reply = dict(frame.payload)
                self._answer(Outcome(reply, None, seconds, frame.body_bytes))
            return True

    def disconnect(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        with self._lock:
            if connection is self._connection:
                self._connection = None
                self.lost_since = time.monotonic()
                self._changed()

    # Under the lock, all of them.

    def _wake(self) -> None:
        if self._connection is not None:
            self._connection.wake()

    def _in_flight(self) -> bool:
        return self._call is not None and self._call.outcome is None

    def _decode(self, data: bytes | Sequence[bytes]) -> Frame | None:
        try:
            return decode(data, self.longest_body)
        except CodecError as error:
            with self._lock:
                self._fail(f"sent bytes that are no frame: {error}")
            return None

    def _answer(self, outcome: Outcome) -> None:
        if self._call is not None and self._call.outcome is None:
            self._call.outcome = outcome
            self._call.frame = None
            self._call.payload = {}
            self._changed()
        self._wake()

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        self._answer(Outcome(None, self.failure))
        self._changed()
