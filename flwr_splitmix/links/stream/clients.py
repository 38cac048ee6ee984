"""The clients of a round over the stream: many calls at once, each with a deadline."""

from __future__ import annotations

import math
import queue
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from flwr_splitmix.description import Description
from flwr_splitmix.events import Phase
from flwr_splitmix.links.frames.payload import payload_bytes
from flwr_splitmix.links.frames.wire import WireDtype
from flwr_splitmix.links.link import Clients, Observe, Outcome, Patience
from flwr_splitmix.links.stream.call import Call
from flwr_splitmix.links.stream.line import Line

Changes = queue.SimpleQueue[int]
"""Indices of clients whose lines have changed."""


@dataclass(frozen=True)
class _UnawaitedCall:
    """A call whose answer is not awaited; `late` if it was awaited before, in vain."""

    call: Call
    deadline: float
    late: bool


@dataclass(frozen=True)
class _QueuedCalls:
    """Calls of one exchange by client index, submitted after others."""

    method: str
    calls: dict[int, Call]


class _AwaitedCalls:
    """The calls of one exchange whose outcomes are awaited.

    Attributes
    ----------
    waiting
        Calls without an outcome, by client index.
    behind
        Clients of these whose earlier call is not over.
    deadline
        When no outcome is awaited any longer.
    next_check
        By client index, when its line must be checked even if it reports no change.
    """

    def __init__(self, calls: Mapping[int, Call], behind: set[int], timeout: float) -> None:
        self.waiting = dict(calls)
        self.behind = behind
        self.began = time.monotonic()
        self.deadline = self.began + timeout
        self.next_check: dict[int, float] = {}
        # Without those that end in no reply: they do not show how long a step takes.
        self._call_count = len(calls)
        self._seconds: list[float] = []

    @property
    def working(self) -> set[int]:
        """Clients that work on their call."""
        return self.waiting.keys() - self.behind

    def end(self, client: int, outcome: Outcome | None) -> None:
        """Note a call's outcome, None if its client was lost with an earlier call."""
        del self.waiting[client]
        if outcome is None or outcome.reply is None:
            self._call_count -= 1
        else:
            self._seconds.append(outcome.seconds)

    def next_check_at(self) -> float:
        """Return when the next call that waits must be checked."""
        times = (self.next_check[c] for c in self.waiting if c in self.next_check)
        return min([self.deadline, *times])

    def late_from(self, patience: Patience | None) -> float:
        """Return when calls that wait are late; infinity if too few have been answered."""
        if not patience or not self.working:
            return math.inf
        if len(self._seconds) < patience.answers_needed(self._call_count):
            return math.inf
        # Clients that have not answered are slower than the median in any case.
        middle = sorted(self._seconds)[(self._call_count + 1) // 2 - 1]
        return self.began + patience.factor * middle


class StreamClients(Clients):
    """Clients reached over lines.

    Parameters
    ----------
    lines
        By client index.
    changes
        Queue in which the lines report changes.
    wire_dtype
        Wire format of calls, to count their bytes; lines count the bytes of replies.
    step_timeout, reattach_timeout
        Seconds for a call, and for a node to reattach after its connection broke.
    """

    overlaps: ClassVar[bool] = True

    def __init__(
        self,
        server_round: int,
        descriptions: Mapping[int, Description],
        failures: Mapping[int, str],
        observe: Observe | None,
        *,
        lines: Mapping[int, Line],
        changes: Changes,
        wire_dtype: WireDtype,
        step_timeout: float,
        reattach_timeout: float,
    ) -> None:
        super().__init__(server_round, descriptions, failures, observe)
        self.lines = lines
        self.changes = changes
        self.wire_dtype = wire_dtype
        self.step_timeout = step_timeout
        self.reattach_timeout = reattach_timeout
        self._unawaited: dict[int, _UnawaitedCall] = {}
        self._queued: deque[_QueuedCalls] = deque()

    @property
    def busy(self) -> frozenset[int]:
        """Clients still working on a call whose answer was late.

        The check records the late answers that have arrived, and excludes clients that are lost.
        """
        late = [client for client, call in self._unawaited.items() if call.late]
        for client in late:
            self._settle(client)
        return frozenset(late) & self._unawaited.keys()

    def fail(self, client: int, reason: str) -> None:
        """Exclude a client for the rest of the round, and send it the reason."""
        super().fail(client, reason)
        self.lines[client].end("leave", reason)

    def _wire_bytes(self, payload: Mapping[str, Any]) -> int:
        return payload_bytes(payload, self.wire_dtype)

    def call(
        self, method: str, payloads: Mapping[int, Mapping[str, Any]], *, phase: Phase = "train"
    ) -> dict[int, dict[str, Any]]:
        """Call one exchange on many clients at once; late answers of these are awaited first."""
        self._await_late(payloads)
        return super().call(method, payloads, phase=phase)

    def answers(
        self,
        method: str,
        payloads: Mapping[int, Mapping[str, Any]],
        *,
        patience: Patience | None = None,
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Call one exchange of training on many clients, and yield each reply as it arrives."""
        self._await_late(payloads)
        calls = self._submit_to_alive(method, payloads)
        for client, outcome in self._outcomes(calls, patience):
            if (reply := self._settle_call(client, method, outcome)) is not None:
                yield client, reply

    def post(self, method: str, payloads: Mapping[int, Mapping[str, Any]]) -> None:
        """Start calls on clients whose last call is over; their next call waits for these."""
        for client, call in self._submit_to_alive(method, payloads).items():
            deadline = time.monotonic() + self.step_timeout
            self._unawaited[client] = _UnawaitedCall(call, deadline, late=False)

    def queue(self, method: str, payloads: Mapping[int, Mapping[str, Any]]) -> None:
        """Submit one exchange after the calls in flight; `answered` returns the replies."""
        self._queued.append(_QueuedCalls(method, self._submit_to_alive(method, payloads)))

    def answered(self) -> dict[int, dict[str, Any]]:
        """Wait for the replies to the oldest queued calls, and return them."""
        queued = self._queued.popleft()
        calls = {c: call for c, call in queued.calls.items() if c not in self.failures}
        outcomes = dict(self._outcomes(calls))
        replies = {
            client: self._settle_call(client, queued.method, outcome)
            for client, outcome in sorted(outcomes.items())
        }
        return {client: reply for client, reply in replies.items() if reply is not None}

    def _exchange(
        self, method: str, payloads: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Outcome]:
        return dict(self._outcomes(self._submit(method, payloads)))

    def _submit_to_alive(
        self, method: str, payloads: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Call]:
        """Report and submit the calls of the clients that are alive."""
        alive_payloads = self._for_alive(payloads)
        self._report_calls(method, alive_payloads)
        return self._submit(method, alive_payloads)

    def _submit(self, method: str, payloads: Mapping[int, Mapping[str, Any]]) -> dict[int, Call]:
        return {client: self.lines[client].submit(method, p) for client, p in payloads.items()}

    def _outcomes(
        self, calls: Mapping[int, Call], patience: Patience | None = None
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield each call's outcome as soon as it is known; without patience no call is late."""
        awaited = _AwaitedCalls(calls, self._unawaited.keys() & calls.keys(), self.step_timeout)
        changed = set(calls)
        while awaited.waiting:
            for client in changed & awaited.waiting.keys():
                if (outcome := self._outcome(client, awaited)) is not None:
                    yield client, outcome
            late_from = awaited.late_from(patience)
            if time.monotonic() >= late_from:
                changed = self._release_late(awaited)
            elif awaited.waiting:
                limit = min(late_from, awaited.next_check_at())
                changed = next_changes(self.changes, limit - time.monotonic())
                changed = changed or set(awaited.waiting)

    def _outcome(self, client: int, awaited: _AwaitedCalls) -> Outcome | None:
        """Return a client's outcome; None if it is not known yet, or never will be."""
        if client in awaited.behind:
            awaited.next_check[client] = self._settle(client)
            if client in self._unawaited:
                return None
            awaited.behind.discard(client)
            if client in self.failures:
                awaited.end(client, None)
                return None
        outcome, awaited.next_check[client] = self._check_call(
            client, awaited.waiting[client], awaited.deadline
        )
        if outcome is not None:
            awaited.end(client, outcome)
        return outcome

    def _release_late(self, awaited: _AwaitedCalls) -> set[int]:
        """Await late calls no longer; return the clients to check."""
        # Answers may have arrived while the caller used the previous one.
        answered = {c for c in awaited.working if awaited.waiting[c].outcome is not None}
        for client in awaited.working - answered:
            call = awaited.waiting.pop(client)
            self.late[client] += 1
            self._unawaited[client] = _UnawaitedCall(call, awaited.deadline, late=True)
        return answered | awaited.behind

    def _check_call(self, client: int, call: Call, deadline: float) -> tuple[Outcome | None, float]:
        """Return the outcome of a client's call, None if in flight, and when to check again."""
        now, outcome, lost_since = time.monotonic(), call.outcome, self.lines[client].lost_since
        if outcome is not None:
            return outcome, now
        if now >= deadline:
            reason = f"did not answer {call.method} within {self.step_timeout:g} s"
            return Outcome(None, reason, self.step_timeout), now
        if lost_since is None:
            return None, deadline
        if now >= lost_since + self.reattach_timeout:
            reason = f"was cut off and not back within {self.reattach_timeout:g} s"
            return Outcome(None, reason, self.reattach_timeout), now
        return None, lost_since + self.reattach_timeout

    def _settle(self, client: int) -> float:
        """Record a client's unawaited call if it is over; return when to check again."""
        unawaited = self._unawaited[client]
        outcome, until = self._check_call(client, unawaited.call, unawaited.deadline)
        if outcome is not None:
            del self._unawaited[client]
            self._settle_call(client, unawaited.call.method, outcome)
        return until

    def _await_late(self, clients: Iterable[int]) -> None:
        """Wait until the late answers of clients have arrived, or never will."""
        awaited = set(clients)
        while late := self.busy & awaited:
            calls = ((c, self._unawaited[c]) for c in late)
            deadlines = (
                self._check_call(c, pending.call, pending.deadline)[1] for c, pending in calls
            )
            next_changes(self.changes, min(deadlines) - time.monotonic())


def next_changes(changes: Changes, timeout: float) -> set[int]:
    """Wait for a change; return all pending ones, or none after `timeout` seconds."""
    changed: set[int] = set()
    try:
        changed.add(changes.get(timeout=max(timeout, 0.0)))
        while True:
            changed.add(changes.get_nowait())
    except queue.Empty:
        return changed
