"""The interface of links: the clients of a round, called by index, in parallel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid
from torch import Tensor

from flwr_splitmix.description import Description
from flwr_splitmix.errors import ForeseenError
from flwr_splitmix.events import Exchange, Phase
from flwr_splitmix.words import one_line

Observe = Callable[[Exchange], None]

Shape = TypeVar("Shape", bound=Description)


class LinkError(ForeseenError, RuntimeError):
    """A link cannot be opened, or cannot reach the clients that it needs."""


class RoundLostError(LinkError):
    """Something that the round depended on is gone; the next round may find it again."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one client's call: a reply, or the reason why there is none.

    Parameters
    ----------
    seconds
        Duration of the call, from when the client was free to start it.
    nbytes
        Bytes of the reply's tensors on the wire; None uses their size in memory.
    """

    reply: dict[str, Any] | None
    error: str | None = None
    seconds: float = 0.0
    nbytes: int | None = None


@dataclass(frozen=True)
class Patience:
    """How long an exchange waits for slower clients.

    Parameters
    ----------
    factor
        Limit as a multiple of the median of the clients' seconds in this exchange.
    least
        Number of answers that the exchange always waits for.
    """

    factor: float
    least: int

    def answers_needed(self, asked: int) -> int:
        """Return how many of `asked` clients must have answered before any is late."""
        return min(asked, max(self.least, (asked + 1) // 2))


class Clients(ABC):
    """The clients that take part in a round.

    Attributes
    ----------
    overlaps
        Whether a client computes, sends and receives concurrently when calls are queued.
    descriptions
        By client index, each client's description of itself when it attached.
    failures
        By client index, why a client does not take part (any more).
    seconds
        By client index, seconds spent in its calls.
    late
        By client index, the number of its answers that were not awaited.
    spent_nodes
        How many nodes behind mixing groups reported that their privacy budget is spent; only the
        mixer knows which.
    """

    overlaps: ClassVar[bool] = False

    def __init__(
        self,
        server_round: int,
        descriptions: Mapping[int, Description],
        failures: Mapping[int, str],
        observe: Observe | None,
    ) -> None:
        self.server_round = server_round
        self.descriptions = dict(sorted(descriptions.items()))
        self.failures = {client: one_line(why) for client, why in failures.items()}
        self.seconds = dict.fromkeys(self.descriptions, 0.0)
        self.late: Counter[int] = Counter()
        self.spent_nodes = 0
        self.replies = {}
        self._observe = observe
        self._waiting: deque[tuple[str, Mapping[int, Mapping[str, Any]]]] = deque()

    @property
    def replies(self) -> Mapping[int, Message]:
        """After the round, the clients' reply messages by client index, sorted."""
        return self._replies

    @replies.setter
    def replies(self, replies: Mapping[int, Message]) -> None:
        self._replies = dict(sorted(replies.items()))

    @property
    def alive(self) -> tuple[int, ...]:
        """Indices of the clients that can be called, sorted."""
        return tuple(c for c in self.descriptions if c not in self.failures)

    def described(self, shape: type[Shape]) -> dict[int, Shape]:
        """Return the descriptions of the clients that can be called and have this shape."""
        descriptions = {client: self.descriptions[client] for client in self.alive}
        return {
            client: description
            for client, description in descriptions.items()
            if isinstance(description, shape)
        }

    @property
    def nodes(self) -> tuple[int, ...]:
        """Client indices of the remaining nodes: the clients, or the nodes behind their groups."""
        return self.alive

    @property
    def node_seconds(self) -> Mapping[int, float]:
        """Seconds spent in calls, by client index of the node, if known."""
        return self.seconds

    @property
    def busy(self) -> frozenset[int]:
        """Clients still working on a call whose answer was late."""
        return frozenset()

    def fail(self, client: int, reason: str) -> None:
        """Exclude a client for the rest of the round; the reason may quote the client."""
        self.failures.setdefault(client, one_line(reason))

    def call(
        self, method: str, payloads: Mapping[int, Mapping[str, Any]], *, phase: Phase = "train"
    ) -> dict[int, dict[str, Any]]:
        """Call one exchange on many clients at once.

        Parameters
        ----------
        method
            Name of an exchange of the client class.
        payloads
            Keyword arguments by client index; those of clients no longer alive are not sent.
        phase
            Purpose of the exchange, for observers.

        Returns
        -------
        Replies by client index. A client that failed or timed out is missing, here and in `alive`.
        """
        payloads = self._for_alive(payloads)
        self._report_calls(method, payloads, phase)
        replies = {}
        for client, outcome in sorted(self._exchange(method, payloads).items()):
            reply = self._settle_call(client, method, outcome, phase)
            if reply is not None:
                replies[client] = reply
        return replies

    def answers(
        self,
        method: str,
        payloads: Mapping[int, Mapping[str, Any]],
        *,
        patience: Patience | None = None,
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Call one exchange of training on many clients, and yield each reply as it arrives.

        If a link delivers all answers together, they come in the order of the clients.

        Parameters
        ----------
        patience
            None waits for all. Otherwise a client that takes longer is `late`: it stays in the
            round, is `busy` until its answer arrives, and that answer is dropped. Links whose
            clients share processors wait for all.
        """
        yield from self.call(method, payloads).items()

    def post(self, method: str, payloads: Mapping[int, Mapping[str, Any]]) -> None:
        """Call one exchange of training without waiting for the answers, which must be empty.

        A client answers before its next call begins.
        """
        self.call(method, payloads)

    def queue(self, method: str, payloads: Mapping[int, Mapping[str, Any]]) -> None:
        """Queue one exchange of training after those already queued; `answered` has the replies.

        A client takes its calls in order. Over a link that `overlaps`, calls and replies travel
        while the client works on other calls; over other links, calls are made one after another,
        each when its replies are requested.
        """
        self._waiting.append((method, payloads))

    def answered(self) -> dict[int, dict[str, Any]]:
        """Wait for the replies to the oldest queued calls, and return them as `call` does.

        Raises
        ------
        IndexError
            If nothing is queued.
        """
        return self.call(*self._waiting.popleft())

    def _for_alive(self, payloads: Mapping[int, Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
        """Return the payloads of the clients that are alive, sorted by client."""
        alive = set(self.alive)
        return {c: p for c, p in sorted(payloads.items()) if c in alive}

    def _report_calls(
        self, method: str, payloads: Mapping[int, Mapping[str, Any]], phase: Phase = "train"
    ) -> None:
        """Report the payloads of calls to the observer."""
        for client, payload in payloads.items():
            self._report_exchange(client, method, "down", payload, self._wire_bytes(payload), phase)

    def _settle_call(
        self, client: int, method: str, outcome: Outcome, phase: Phase = "train"
    ) -> dict[str, Any] | None:
        """Report the outcome of a call and return its reply; exclude a client without one."""
        self.seconds[client] += outcome.seconds
        if outcome.reply is None:
            self.fail(client, outcome.error or "no reply")
            return None
        nbytes = self._wire_bytes(outcome.reply) if outcome.nbytes is None else outcome.nbytes
        self._report_exchange(client, method, "up", outcome.reply, nbytes, phase)
        return outcome.reply

    def _report_exchange(
        self,
        client: int,
        method: str,
        direction: Literal["down", "up"],
        payload: Mapping[str, Any],
        nbytes: int,
        phase: Phase,
    ) -> None:
        if self._observe is not None:
            self._observe(
                Exchange(self.server_round, client, method, direction, payload, nbytes, phase)
            )

    def _wire_bytes(self, payload: Mapping[str, Any]) -> int:
        """Return the bytes that a payload's tensors take on the wire."""
        return tensor_bytes(payload)

    @abstractmethod
    def _exchange(
        self, method: str, payloads: Mapping[int, Mapping[str, Any]]
    ) -> dict[int, Outcome]:
        """Make the calls; every client of `payloads` has an outcome."""


UNNAMED = "unnamed-"
"""Beginning of the id of a start without a run, followed by 16 hexadecimal digits."""


class Link(ABC):
    """The connection from a strategy to its clients within a round."""

    run_of_strategy: str = ""
    """Id of the strategy's run, or of its start if it has none; for a link that was given none. It
    is set before `open`, which takes a grid alone, even in links of other authors."""

    key_of_strategy: Callable[[], str] | None = None
    """Returns the secret by which nodes know the strategy's run again, as `Run.state_key` does;
    None for a start without a run. It is set with `run_of_strategy`."""

    @abstractmethod
    def open(self, grid: Grid | None) -> None:
        """Start what the link needs."""

    @property
    def virtual_nodes(self) -> int | None:
        """Number of virtual nodes of a simulation, once asked; 0 with SuperNodes; None: neither."""
        return None

    @property
    def partitions(self) -> Mapping[int, int]:
        """By client index, into how many parts the data are divided, where the node reports it."""
        return {}

    @property
    def rounds_uploads(self) -> bool:
        """Whether floating-point uploads are rounded to a narrower format on the way."""
        return False

    @abstractmethod
    def directory(self, grid: Grid | None, min_nodes: int) -> dict[int, int]:
        """Return the available nodes, client index -> node id, sorted.

        Raises
        ------
        LinkError
            If fewer than `min_nodes` answered in time.
        """

    @abstractmethod
    def round(
        self, grid: Grid | None, messages: Sequence[Message], observe: Observe | None = None
    ) -> AbstractContextManager[Clients]:
        """Attach the clients addressed by the messages; at the end collect their replies."""

    @abstractmethod
    def close(self) -> None:
        """Stop everything that `open` started."""


def tensor_bytes(payload: Any) -> int:
    """Count the bytes of all tensors in nested lists and dictionaries."""
    if isinstance(payload, Tensor):
        return payload.nbytes
    return sum(tensor_bytes(value) for value in _children(payload))


def _children(payload: Any) -> Iterator[Any]:
    if isinstance(payload, Mapping):
        yield from payload.values()
    elif isinstance(payload, (list, tuple)):
        yield from payload
