"""One client's line in a round: ordered calls that survive broken connections.

The client sends one `hello` per connection (number: the last call that it answered; payload: its
description), gets a `hello` back, and then sends a `reply` or an `error` to each `call`, in order.
The server sends calls, numbered from 1, and finally `finish` or `leave`; several calls may be in
flight. When a connection breaks, all calls in flight are sent again on the next one, and the client
repeats its stored replies, so no call runs twice. Each call states the last call whose reply has
arrived; the client drops its replies up to that one. A reply to another call than the oldest in
flight ends the line.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from flwr_splitmix.description import Description, DescriptionError, read_description
from flwr_splitmix.links.frames.codec import MAX_BODY, Frame, decode
from flwr_splitmix.links.frames.feedback import Feedback
from flwr_splitmix.links.frames.payload import CodecError
from flwr_splitmix.links.frames.wire import WireDtype
from flwr_splitmix.links.link import Outcome, tensor_bytes
from flwr_splitmix.links.stream.call import Call, ClosedLineError, Connection, LiveLineError
from flwr_splitmix.links.stream.limits import reply_limit
from flwr_splitmix.links.stream.protocol import HELLO_BODY, HELLO_HEADER, REPLY_HEADER, in_pieces
from flwr_splitmix.words import one_line

PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.01, 1.0
"""Seconds of pause for every connection that a client had before in the round, and the most."""


class Line:
    """The server's end of a line; its public methods may be called from any thread.

    The strategy calls `submit`, `end` and `abandon`, and the connection the others. Private methods
    run under the lock, except `_encoded` and `_decode`.

    Parameters
    ----------
    changed
        Called without arguments, under the line's lock, whenever a call's outcome, `description`,
        `failure` or `lost_since` may have changed; must not block.
    wire
        Wire format of the floating-point tensors sent to the client.
    max_body
        Largest body in bytes of a frame to or from the client.
    seed
        Seed of stochastic rounding.
    feedback
        Adds the rounding error of gradients to the next ones; None leaves gradients unchanged.

    Attributes
    ----------
    description
        The client's description of itself when it attached; None before.
    failure
        Why the line can no longer carry calls; None while it can.
    lost_since
        When the connection broke (`time.monotonic`); None while one is open, or before the first.
    connections
        How many connections the client has had.
    exact
        Whether a reply with a tensor in a narrower format than its own fails the line.
    """

    def __init__(
        self,
        changed: Callable[[], None],
        wire: WireDtype = "keep",
        max_body: int = MAX_BODY,
        seed: int = 0,
        feedback: Feedback | None = None,
    ) -> None:
        self.description: Description | None = None
        self.failure: str | None = None
        self.lost_since: float | None = None
        self.connections = 0
        self.exact = False
        self._changed = changed
        self._wire = wire
        self._max_body = max_body
        self._seed = seed
        self._feedback = feedback
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._has_sent_hello = False
        self._number = 0
        self._last_sent = 0
        self._in_flight: deque[Call] = deque()
        self._last_reply_at = 0.0
        self._ending: Frame | None = None

    def submit(self, method: str, payload: Mapping[str, Any]) -> Call:
        """Submit a call after those in flight; its `outcome` is set when it is over."""
        with self._lock:
            self._number += 1
            limit = reply_limit(self.description, payload, self._max_body)
            call = Call(self._number, method, payload, time.monotonic(), limit)
            if self.failure is None:
                self._in_flight.append(call)
            else:
                call.outcome = Outcome(None, self.failure)
                self._changed()
            self._wake()
            return call

    def end(self, kind: Literal["finish", "leave"], text: str = "") -> None:
        """Tell the client that the round is over for it; only the first call has an effect."""
        with self._lock:
            if self._ending is not None:
                return
            self._ending = Frame(kind, text=text)
            self._wake()
            # A client that owes an answer or has not sent its hello would not read the frame.
            stuck = self._in_flight or not self._has_sent_hello
            connection = self._connection if stuck else None
        if connection is not None:
            connection.cancel()

    def abandon(self, reason: str) -> None:
        """Fail the calls in flight, and the line with them; do nothing if there are none."""
        with self._lock:
            if self._in_flight:
                self._fail(reason)

    @property
    def call_bytes(self) -> int:
        """Bytes of the tensors of the next call to send; 0 if there is none."""
        with self._lock:
            call = self._unsent()
            return 0 if call is None else tensor_bytes(call.payload)

    @property
    def pause(self) -> float:
        """Seconds to wait before the newest connection's hello is read."""
        return min(PAUSE_SECONDS * (self.connections - 1), MAX_PAUSE_SECONDS)

    @property
    def limits(self) -> tuple[int, int]:
        """Largest body and header in bytes of the next frame from the client."""
        with self._lock:
            if not self._has_sent_hello:
                return min(HELLO_BODY, self._max_body), HELLO_HEADER
            body = self._in_flight[0].longest_reply if self._in_flight else self._max_body
            return body, REPLY_HEADER

    def connect(self, connection: Connection) -> None:
        """Attach a new connection to the line.

        Raises
        ------
        LiveLineError
            If another connection holds the line and is still open.
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
            self._wake()  # the previous connection, which has ended
            self._connection = connection
            self.connections += 1
            self._has_sent_hello = False
            self._last_sent = self._answered

    def hello(self, connection: Connection, data: bytes | Sequence[bytes]) -> None:
        """Process a connection's first frame, given whole or in messages."""
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
                self._has_sent_hello = True
                self.lost_since = None
                self._describe(frame.payload)
                self._changed()

    def next_frame(self, connection: Connection) -> tuple[list[bytes], bool] | None:
        """Return what to send now: (messages of a frame, whether it is the last frame).

        Returns
        -------
        No messages if there is nothing to send until the connection is woken; None if the
        connection has ended or another one holds the line.
        """
        while True:
            with self._lock:
                if connection is not self._connection or not connection.is_active():
                    return None
                if not self._has_frame():
                    return [], False
                if self.failure is not None:
                    return in_pieces(Frame("leave", text=self.failure)), True
                call, answered = self._unsent(), self._answered
                if call is None:
                    assert self._ending is not None
                    return in_pieces(self._ending), True
                self._last_sent = call.number
                self._wake()  # its reply may be read
            if (frame := self._encoded(call, answered)) is not None:
                return frame, False

    def _has_frame(self) -> bool:
        over = self.failure is not None or self._ending is not None
        return over or self._unsent() is not None

    def _encoded(self, call: Call, answered: int) -> list[bytes] | None:
        """Return a call's messages, encoded once, outside the lock; None if that fails."""
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
                    # Later calls depend on it.
                    self._end_all(Outcome(None, f"could not be sent its call: {error}"))
                return None
        return call.frame

    def awaits_reply(self, connection: Connection) -> bool:
        """Return whether a call sent over the connection is still unanswered."""
        with self._lock:
            mine = connection is self._connection and connection.is_active()
            return mine and bool(self._in_flight) and self._in_flight[0].number <= self._last_sent

    def receive(self, connection: Connection, data: bytes | Sequence[bytes]) -> bool:
        """Process a later frame; return whether it ended a call in flight or failed the line."""
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
            if (wrong := oldest.wrong_with(frame, exact=self.exact)) is not None:
                self._fail(wrong)
                return True
            now = time.monotonic()
            seconds, self._last_reply_at = now - max(oldest.began, self._last_reply_at), now
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

    def _describe(self, description: Mapping[str, Any]) -> None:
        """Read the description of the first hello, or fail the line if it cannot be read."""
        try:
            self.description = self.description or read_description(description)
        except DescriptionError as error:
            self._fail(str(error))

    @property
    def _answered(self) -> int:
        """Number of the last call whose reply has arrived or never will."""
        return self._in_flight[0].number - 1 if self._in_flight else self._number

    def _unsent(self) -> Call | None:
        """Return the next call not yet sent over the connection."""
        # Calls in flight are numbered consecutively.
        place = max(self._last_sent - self._answered, 0)
        return self._in_flight[place] if place < len(self._in_flight) else None

    def _wake(self) -> None:
        if self._connection is not None:
            self._connection.wake()

    def _decode(self, data: bytes | Sequence[bytes]) -> Frame | None:
        try:
            return decode(data, *self.limits)
        except CodecError as error:
            with self._lock:
                self._fail(f"sent bytes that are not a frame: {error}")
            return None

    def _answer(self, outcome: Outcome) -> None:
        """Record the outcome of the oldest call in flight."""
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
