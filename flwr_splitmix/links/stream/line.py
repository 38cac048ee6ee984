"""One client's line in a round: calls in their order, over whatever connection carries them.

The client sends `hello` once a connection (number: the last call that it answered; payload: its
description) and gets a `hello` back, then sends a `reply` or an `error` to each `call`, in their
order. The server sends calls, numbered from 1, and at last `finish` or `leave`; several calls may
be in flight. A connection may break at any moment: all calls in flight are sent again on the next
one, and the client repeats the replies that it has stored, so that no call is run twice. Each call
says which one was the last whose reply has come, up to which the client need not store replies.
Frames about other calls than the oldest in flight change nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from flwr_splitmix.links.frames.codec import MAX_BODY, Frame, decode
from flwr_splitmix.links.frames.feedback import Feedback
from flwr_splitmix.links.frames.payload import CodecError
from flwr_splitmix.links.frames.wire import WireDtype
from flwr_splitmix.links.link import Outcome, tensor_bytes
from flwr_splitmix.links.stream.call import Call, ClosedLineError, Connection, LiveLineError
from flwr_splitmix.links.stream.limits import reply_limit
from flwr_splitmix.links.stream.protocol import HELLO_BODY, in_pieces
from flwr_splitmix.links.words import one_line


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
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._said_hello = False
        self._number = 0
        self._sent = 0
        self._in_flight: deque[Call] = deque()
        self._last: Call | None = None
        self._heard = 0.0
        self._ending: Frame | None = None

    # The strategy's side.

    def submit(self, method: str, payload: Mapping[str, Any]) -> Call:
        """Start a call behind those in flight; its `outcome` will hold what becomes of it."""
        with self._lock:
            self._number += 1
            limit = reply_limit(self.description or {}, payload, self._max_body)
            call = Call(self._number, method, payload, time.monotonic(), limit)
            self._last = call
            if self.failure is None:
                self._in_flight.append(call)
            else:
                call.outcome = Outcome(None, self.failure)
                self._changed()
            self._wake()
            return call

    @property
    def outcome(self) -> Outcome | None:
        """What became of the call that was submitted last; None while it is in flight."""
        with self._lock:
            return None if self._last is None else self._last.outcome

    def end(self, kind: Literal["finish", "leave"], text: str = "") -> None:
        """Tell the client that the round is over for it; it may be told only once."""
        with self._lock:
            if self._ending is not None:
                return
            self._ending = Frame(kind, text=text)
            self._wake()
            # Whoever owes an answer, or does not read, would not get to see the frame.
            stuck = self._in_flight or not self._said_hello
            connection = self._connection if stuck else None
        if connection is not None:
            connection.cancel()

    def abandon(self, reason: str) -> None:
        """Wait for no answer any more: calls in flight fail, and so does the line with them."""
        with self._lock:
            if self._in_flight:
                self._fail(reason)

    def drop(self) -> None:
        """End the connection, if there is one."""
        with self._lock:
            connection = self._connection
        if connection is not None:
            connection.cancel()

    # The connection's side.

    @property
    def call_bytes(self) -> int:
        """Bytes of the tensors of the next call that is to be sent; 0 if there is none."""
        with self._lock:
            call = self._unsent()
            return 0 if call is None else tensor_bytes(call.payload)

    @property
    def longest_body(self) -> int:
        """Most bytes of tensors that the connection's next frame may have."""
        with self._lock:
            if not self._said_hello:
                return min(HELLO_BODY, self._max_body)
            return self._in_flight[0].longest_reply if self._in_flight else self._max_body

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
            self._sent = self._answered

    def hello(self, connection: Connection, data: bytes | Sequence[bytes]) -> None:
        """Take a connection's first frame, whole or in its messages."""
        with self._lock:
            if connection is not self._connection:
                return
            frame = self._decode(data)
            if frame is None:
                return
            if frame.kind != "hello":
                self._fail(f"began with a {frame.kind} frame, not with hello")
            elif not self._answered <= frame.number <= self._number:
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
                call, answered = self._unsent(), self._answered
                if call is None:
                    assert self._ending is not None
                    return in_pieces(self._ending), True
                self._sent = call.number
                self._wake()  # its reply may be read
            if (frame := self._encoded(call, answered)) is not None:
                return frame, False

    def _wanted(self) -> bool:
        over = self.failure is not None or self._ending is not None
        return over or self._unsent() is not None

    def _encoded(self, call: Call, answered: int) -> list[bytes] | None:
        """Return a call's messages, which are made once, outside of the lock."""
        if call.frame is None:
            payload = call.payload
            if self._feedback is not None:
                payload = self._feedback.correct(call.number, payload)
            arguments = {"answered": answered, "arguments": payload}
            frame = Frame("call", call.number, call.method, arguments)
            try:
                call.frame = in_pieces(frame, self._wire, self._max_body, self._seed)
            except CodecError as error:
                with self._lock:
                    # The calls behind it rest on it.
                    self._end_all(Outcome(None, f"could not be sent its call: {error}"))
                return None
        return call.frame

    def awaits_reply(self, connection: Connection) -> bool:
        """Return whether a call that the connection was sent has not been answered yet."""
        with self._lock:
            mine = connection is self._connection and connection.is_active()
            return mine and bool(self._in_flight) and self._in_flight[0].number <= self._sent

    def receive(self, connection: Connection, data: bytes | Sequence[bytes]) -> bool:
        """Take a frame that is not the first; returns whether it answered a call in flight."""
        with self._lock:
            if connection is not self._connection:
                return False
            oldest = self._in_flight[0] if self._in_flight else None
        frame = self._decode(data)
        if frame is None:
            return True
        with self._lock:
            current = self._in_flight[0] if self._in_flight else None
            if connection is not self._connection or oldest is None or oldest is not current:
                return False
            if frame.kind not in ("reply", "error"):
                self._fail(f"sent a {frame.kind} frame in the midst of a round")
                return True
            if frame.number != oldest.number:
                return False
            now = time.monotonic()
            seconds, self._heard = now - max(oldest.began, self._heard), now
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

    @property
    def _answered(self) -> int:
        """The last call whose reply has come, or never will."""
        return self._in_flight[0].number - 1 if self._in_flight else self._number

    def _unsent(self) -> Call | None:
        """Return the next call that the connection has not been sent."""
        # Few are in flight, and all are numbered one behind the other.
        place = max(self._sent - self._answered, 0)
        return self._in_flight[place] if place < len(self._in_flight) else None

    def _wake(self) -> None:
        if self._connection is not None:
            self._connection.wake()

    def _decode(self, data: bytes | Sequence[bytes]) -> Frame | None:
        try:
            return decode(data, self.longest_body)
        except CodecError as error:
            with self._lock:
                self._fail(f"sent bytes that are no frame: {error}")
            return None

    def _answer(self, outcome: Outcome) -> None:
        """Note what became of the oldest call in flight."""
        call = self._in_flight.popleft()
        call.outcome = outcome
        call.frame = None
        call.payload = {}
        self._changed()
        self._wake()

    def _end_all(self, outcome: Outcome) -> None:
        while self._in_flight:
            self._answer(outcome)

    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        self._end_all(Outcome(None, self.failure))
        self._changed()
        self._wake()
