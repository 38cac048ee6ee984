"""The base class of clients: a server may call only the methods marked as exchanges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flwr_splitmix.clients.exchanges import is_exchange, lacking, place_names
from flwr_splitmix.clients.guards.exposure_notes import ExposureNotes
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.examples import Example, fetch
from flwr_splitmix.errors import ForeseenError
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.seeding import derive_seed, secrets_are_seeded, seeded_draws, seeded_secrets
from flwr_splitmix.words import listed, with_article

MAX_EARLIER = 1 << 17
"""Most batches of earlier attempts that a client draws again to charge them; more are unknown."""

NO_DATA = "this client has no training data"
"""Message of a client that cannot take part at all; a server stops asking it."""

EMPTY = f"{NO_DATA}: leave it out of the list of clients; on nodes, a run continues without it"
"""Message of a client that is made with an empty data set."""


class ClientError(ForeseenError, RuntimeError):
    """A client cannot do what was asked; the message is safe to send to the server."""


class WrappedError(ClientError):
    """The app's own code has failed: its error is the cause, and may quote the data.

    Parameters
    ----------
    message
        The message for the server, without the cause's text.
    whole
        The message for this side's log, with the cause's text.
    """

    def __init__(self, message: str, whole: str = "") -> None:
        super().__init__(message)
        self.whole = whole or message


@dataclass(frozen=True)
class Order:
    """The server's instruction to a client for a round.

    It is no order of examples: the client draws that from `seed`.

    Parameters
    ----------
    client
        The client's index: its node's `partition-id`.
    seed
        The run's seed, from which every public draw is derived.
    server_round, num_rounds
        The global round, from 1, and the number of rounds; schedules depend on them.
    attempt
        How many times this client may have been asked for the same before: in rounds that it began
        and did not finish, and in this round, if a resumed run repeats its steps.
    averaged
        Whether the lower segment is sent at the end of the round, to be averaged.
    draw_seed
        Seed of the client's dropout, augmentations and repeatable secrets. The sequence in which
        examples are drawn depends on `seed` alone. None is `seed`; it differs when a later `fit`
        continues with the same clients.
    earlier
        For each of the earlier attempts, how many batches the client may have sent, from its
        current place in its data on. Attempts of unknown length are missing.

    Raises
    ------
    ClientError
        If `attempt` or a length is negative, which a ledger would take for a refund, or a length is
        not an integer.
    """

    client: int
    seed: int
    server_round: int
    num_rounds: int
    attempt: int = 0
    averaged: bool = False
    draw_seed: int | None = None
    earlier: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.attempt < 0:
            raise ClientError(f"the server's ticket has attempt {self.attempt}; 0 is the first")
        if any(type(batches) is not int or batches < 0 for batches in self.earlier):
            raise ClientError(
                "the server's ticket has earlier attempts that are not numbers of batches"
            )

    def unheld(self, held_count: int = 0) -> tuple[list[int], bool]:
        """Return the earlier attempts that a ledger does not hold.

        Parameters
        ----------
        held_count
            How many of the attempts it holds; which ones is not known, so the shortest.

        Returns
        -------
        The lengths of the others, in batches, and whether there are some of unknown length.
        """
        unknown = max(self.attempt - len(self.earlier), 0)
        others = max(len(self.earlier) + unknown - held_count, 0)
        lengths = sorted(self.earlier, reverse=True)[: max(others - unknown, 0)]
        return lengths, min(others, unknown) > 0

    def seed_for(self, purpose: str, *place: int) -> int:
        """Return the seed of the client's draws for one purpose at one place of this round."""
        seed = self.seed if self.draw_seed is None else self.draw_seed
        return derive_seed(seed, purpose, self.client, self.server_round, *place)


class Client(ABC):
    """A live client of split learning: it keeps its graph, optimizer and data between calls.

    Links call `attach` at the start of a round, marked exchanges during it, and `release` at its
    end; `state` and `restore` move the client to another process.
    """

    device: torch.device = torch.device("cpu")

    repeatable_secrets: bool = False
    """For tests and reproductions: secrets derive from the run's seed, and protect nothing."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Reject a subclass whose override of an exchange a server could not call.

        Raises
        ------
        TypeError
            If an override is not marked, or lacks an argument of what it overrides, which would
            otherwise show only in the first round. The message names the method.
        """
        super().__init_subclass__(**options)
        names = {
            n for base in cls.__mro__ for n, method in vars(base).items() if is_exchange(method)
        }
        for name in sorted(names):
            if not is_exchange(getattr(cls, name)):
                raise TypeError(
                    f"{cls.__name__}.{name} overrides an exchange, which the server calls over the "
                    "link; decorate it with @exchange too (flwr_splitmix.clients.exchange)"
                )
            method, *overridden = [vars(base)[name] for base in cls.__mro__ if name in vars(base)]
            if overridden and (missing := lacking(method, overridden[-1])):
                raise TypeError(
                    f"{cls.__name__}.{name} overrides an exchange that the server calls with "
                    f"{listed(missing)}, too; add {listed(missing)} to its arguments, or **options"
                )

    def __init__(self) -> None:
        self._order: Order | None = None
        self._calls: tuple[Order | None, Counter[str]] = None, Counter()
        """In a round, how often each exchange without a place has been called."""
        self._uncounted: ExposureNotes | None = None
        """Where its node notes that it sends something, unless it has or needs no such note."""

    @property
    def order(self) -> Order:
        """The round in progress."""
        if self._order is None:
            raise ClientError("this client has not been attached to a round")
        return self._order

    def run(self, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run one exchange, with generators seeded by run, client, round, and the call's place.

        On a node the first one is noted before in the node's ledger; see `govern`.

        Raises
        ------
        ClientError
            If `method` is not marked as an exchange.
        """
        function = getattr(type(self), method, None)
        if function is None or not is_exchange(function):
            raise ClientError(f"{method[:40]!r} is not an exchange of {type(self).__name__}")
        place = self._place_of(method, arguments)
        if self._uncounted is not None:
            self._uncounted.expose("unledgered")
            self._uncounted = None
        with (
            seeded_draws(self.device, self.order.seed_for(method, *place)),
            seeded_secrets(self.repeatable_secrets or secrets_are_seeded()),
        ):
            reply: dict[str, Any] = function(self, **arguments)
        return reply

    def _place_of(self, method: str, arguments: Mapping[str, Any]) -> list[int]:
        """Return where in the round a call is; a part's number counts from the second part on."""
        names = place_names(type(self), method)
        if names is None:
            counted, calls = self._calls
            if counted is not self.order:
                calls = Counter()
                self._calls = self.order, calls
            calls[method] += 1
            return [calls[method] - 1]
        place = [_whole(arguments.get(name)) for name in names] or [0]
        while len(place) > 1 and not place[-1]:
            place.pop()
        return place

    def _first_examples(self, batches: Batches, number: int) -> Example:
        """Return the first examples, to be checked before a round; their draws are seeded, too."""
        order = self.order
        with seeded_draws(self.device, derive_seed(order.seed, "first-examples", order.client)):
            return fetch(batches.data, batches.first(number), floats=batches.floats)

    @property
    def epsilon(self) -> float | None:
        """The epsilon that the client's messages or uploads have spent; None if none counts them.

        Of heads and tails that DP-SGD trains, which are not messages, the hiding's metrics tell.
        """
        return None

    def govern(self, policy: NodePolicy, folder: Path | None, index: int, run: str) -> None:
        """Apply the node's policy; called once, before the client is attached.

        The node's ledger of all runs has no epsilon once such a client has been asked for anything:
        nothing that it sends is charged there. A subclass whose uploads are charged, as those of
        `SplitClient`, has a method of its own in place of this one.

        Parameters
        ----------
        policy
            The policy of the node's operator.
        folder, index
            The node's folder for files that outlive a run (None: the node has none), and the
            client's index, which is part of the names of its files.
        run
            Identifier that distinguishes runs with different records.

        Raises
        ------
        ClientError
            If the policy does not allow this client.
        """
        if not policy.trains:
            raise ClientError(
                "this node's policy says allow-training = false, and "
                f"{with_article(type(self).__name__)} trains what it keeps"
            )
        if not policy.plain:
            why = "allow-plain = false"
            if policy.max_epsilon is not None:
                why = f"max-epsilon = {policy.max_epsilon:g}"
            raise ClientError(
                f"this node's policy says {why}, and {with_article(type(self).__name__)} sends "
                "what has no epsilon"
            )
        self._uncounted = ExposureNotes.on_node(folder, index, run)

    def begin_run(self) -> None:  # noqa: B027  # most keep nothing of a run
        """Forget what belongs to a run alone; called before a run first attaches the client.

        Another `fit` takes the same object into another run.
        """

    def trainable_parameters(self) -> Iterable[nn.Parameter]:
        """Return the parameters that this client's optimizer changes."""
        return ()

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """Return the weights that may be averaged, on the CPU: what a server sends and receives.

        Of a client on the CPU they are its own tensors, which the next step changes.
        """

    @abstractmethod
    def attach(self, order: Order, arrays: Mapping[str, Tensor] | None) -> dict[str, Any]:
        """Begin a round; `arrays` replace the segment, unless they are None or none.

        Returns
        -------
        A description, in plain values, that the server needs before the first step: the keys of
        `flwr_splitmix.description`, and any of a subclass's own.
        """

    @abstractmethod
    def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        """End the round and return the lower segment's arrays and metrics with "num-examples"."""

    def close(self) -> None:  # noqa: B027  # most hold nothing
        """Remove what an unfinished round has left on the modules."""

    @abstractmethod
    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything that must survive between rounds: tensors and plain values."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Continue from a `state`."""

    def restore_trained(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state` but for a privacy ledger, for a client that is not to continue.

        A ledger of the last finished round lacks what a later, unfinished one has sent, which is
        charged when the client is asked again. Without one it is as `restore`.
        """
        self.restore(tensors, meta)


def _whole(value: object) -> int:
    """Return a whole number as it is, and 0 for whatever else a server has sent."""
    return value if type(value) is int else 0
