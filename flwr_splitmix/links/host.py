"""Live clients in one process, called one after another: in a Ray actor, a node or the server."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from flwr.app import Context
from torch import Tensor

from flwr_splitmix.clients import Client, ClientError, WrappedError
from flwr_splitmix.clients.returned import checked_description, checked_release
from flwr_splitmix.errors import FAULTS, by_signal
from flwr_splitmix.links.errors import is_unexpected, local_sentence, own_sentence, sentence
from flwr_splitmix.links.link import Outcome
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.seeding import held_draws
from flwr_splitmix.storage import plain_numbers
from flwr_splitmix.words import described, one_line

log = logging.getLogger("flwr.splitmix")

ErrorDescriber = Callable[[BaseException], str]
"""Turns an error of a client into the line that is sent to the server."""


class StateStore(Protocol):
    """A store of client states by client index and round, such as `ClientStore`."""

    def save(
        self, index: int, round: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
    ) -> object:
        """Save a client's state after a round; raise OSError if it cannot be saved."""

    def load(
        self, index: int, at_most: int | None = None
    ) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """Return the newest state up to round `at_most` as (round, tensors, meta), or None."""

    def drop_after(self, index: int, round: int) -> int:
        """Delete the states of rounds after `round`; return how many."""

    def prune(self, index: int, kept_rounds: Sequence[int]) -> None:
        """Delete the states that no checkpoint in `kept_rounds` would load."""


class ClientHost:
    """Holds clients by index; each is built once and lives until the host ends.

    Parameters
    ----------
    store
        Where the clients' states are saved between rounds, so that they survive this process;
        None keeps them in memory only.
    describe_error
        Turns an exception raised by a client into the one-line reason sent to the server, which
        is kept in files and sent to trackers: it has no values of the data.

    Attributes
    ----------
    clients
        The clients that have been asked in a round, by index.
    """

    def __init__(
        self,
        store: StateStore | None = None,
        describe_error: ErrorDescriber = local_sentence,
    ) -> None:
        self.clients: dict[int, Client] = {}
        self._finished_round: dict[int, int] = {}
        self._saved_meta: dict[int, str] = {}
        self.store = store
        self.describe_error = describe_error

    def attach(
        self, ticket: Ticket, build: Callable[[], Client], arrays: Mapping[str, Tensor] | None
    ) -> dict[str, Any]:
        """Begin a round for one client; build and restore it if it is not here yet.

        Returns
        -------
        The client's description, with "state-round": the round of its state (0: none).

        Raises
        ------
        ClientError
            If `build` returns anything but a client, or `attach` no dictionary, or if a client
            calls sys.exit(); a client may raise further errors.
        """
        with _exits_as_errors(self.describe_error):
            return self._attach(ticket, build, arrays)

    def _attach(
        self, ticket: Ticket, build: Callable[[], Client], arrays: Mapping[str, Tensor] | None
    ) -> dict[str, Any]:
        index = ticket.client
        if index not in self.clients:
            client = build()
            if not isinstance(client, Client):
                raise ClientError(
                    f"client_fn must return a SplitClient, it returned {type(client).__name__}"
                )
            client.begin_run()
            # Arrays first, whatever state is kept: a different model is refused here.
            client.attach(ticket.order, arrays)
            self._finished_round[index] = self._restore(ticket, client)
            self.clients[index] = client
            if self.store is not None:
                self._saved_meta[index] = _plain(client.state()[1])
        always = ticket.arrays == "always"
        client = self.clients[index]
        description = client.attach(ticket.order, arrays if always else None)
        return {
            **checked_description(client, description),
            "state-round": self._finished_round[index],
        }

    def _restore(self, ticket: Ticket, client: Client) -> int:
        if self.store is None:
            return 0
        self.store.drop_after(ticket.client, ticket.state_round)
        state = self.store.load(ticket.client, at_most=ticket.state_round)
        if state is None:
            return 0
        state_round, tensors, meta = state
        client.restore(tensors, meta)
        return state_round

    def call(self, method: str, payloads: Mapping[int, Mapping[str, Any]]) -> dict[int, Outcome]:
        """Run one exchange on several clients; a client's error becomes its outcome."""
        with held_draws():
            return {index: self._call(index, method, payloads[index]) for index in payloads}

    def _call(self, index: int, method: str, payload: Mapping[str, Any]) -> Outcome:
        began = time.perf_counter()
        client = self.clients.get(index)
        if client is None:
            return Outcome(None, "its host was restarted and does not hold it any more")
        try:
            with _exits_as_errors(self.describe_error):
                reply = client.run(method, payload)
            _check_reply(method, reply)
        except Exception as error:
            # A client's failure costs its own contribution only; the traceback stays here.
            log_failure(index, one_line(method), error)
            return Outcome(None, self.describe_error(error), time.perf_counter() - began)
        return Outcome(reply, None, time.perf_counter() - began)

    def finish(self, ticket: Ticket) -> tuple[dict[str, Tensor], dict[str, int | float], str]:
        """End a client's round, save its state, and return (arrays, metrics, warning or "")."""
        index = ticket.client
        if index not in self.clients:
            raise ClientError("its host was restarted and does not hold it any more")
        client = self.clients[index]
        sends = ticket.returns_arrays
        with _exits_as_errors(self.describe_error):
            arrays, returned = checked_release(client, client.release(), sends=sends)
        try:
            metrics = plain_numbers(returned, "the client's release")
        except TypeError as error:
            raise ClientError(str(error)) from error
        self._finished_round[index] = ticket.server_round
        return dict(arrays) if sends else {}, metrics, self.keep(ticket)

    def keep(self, ticket: Ticket) -> str:
        """Save a client's state under the ticket's round; return a warning, or ""."""
        index = ticket.client
        if self.store is None:
            return ""
        tensors, meta = self.clients[index].state()
        try:
            self.store.save(index, ticket.server_round, tensors, meta)
            self.store.prune(index, ticket.kept_rounds)
        except OSError as error:
            return f"client {index}: its state could not be kept ({error.strerror})"
        self._saved_meta[index] = _plain(meta)
        return ""

    def keep_if_changed(self, ticket: Ticket) -> str:
        """Save a client's state as `keep` does if its plain values have changed since.

        A client's messages cannot be taken back, so a later process must not forget its
        position in the data and its privacy ledger. A training round saves the state at its end;
        this is for evaluations, and for rounds that fail.
        """
        client = self.clients.get(ticket.client)
        if self.store is None or client is None:
            return ""
        changed = _plain(client.state()[1]) != self._saved_meta[ticket.client]
        return self.keep(ticket) if changed else ""


@contextmanager
def _exits_as_errors(describe_error: ErrorDescriber) -> Iterator[None]:
    """Raise a ClientError for a client's sys.exit(), which would end this process for all clients.

    An exception of a signal's handler passes: it is to end the process.
    """
    try:
        yield
    except SystemExit as error:
        if by_signal(error):
            raise
        raise WrappedError(describe_error(error), sentence(error)) from error


def _check_reply(method: str, reply: object) -> None:
    """Raise ClientError unless a reply is a dictionary, whose tensors have values in memory."""
    if not isinstance(reply, dict):
        raise ClientError(
            f"{one_line(method)} returns {described(reply)}; expected a dictionary of tensors and "
            "plain values"
        )
    waiting: list[object] = list(reply.values())
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
        elif isinstance(value, Tensor) and (value.is_meta or value.layout != torch.strided):
            kind = "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
            raise ClientError(
                f"{one_line(method)} returns a tensor of kind {kind}; expected strided tensors "
                "with values, such as tensor.to_dense()"
            )


def _plain(meta: Mapping[str, Any]) -> str:
    return json.dumps(meta, sort_keys=True)


def log_failure(client: int, where: str, error: Exception) -> None:
    """Log in full why a client failed, with a traceback unless the text is complete."""
    more = error if is_unexpected(error) else None
    log.error("client %d failed in %s: %s", client, where, own_sentence(error), exc_info=more)


def logged_reason(client: int, where: str, error: Exception) -> str:
    """Return why a client failed, without values of the data; log the full error if it has more."""
    reason = local_sentence(error)
    if is_unexpected(error) or reason != own_sentence(error):
        log_failure(client, where, error)
    return reason


def build(
    client_fn: Callable[[Context], Client],
    context: Context,
    describe_error: ErrorDescriber = local_sentence,
) -> Client:
    """Build the client with client_fn.

    Raises
    ------
    ClientError
        If client_fn raises; other errors are wrapped and attributed to it.
    """
    try:
        return client_fn(context)
    except ClientError:
        raise
    except FAULTS as error:
        if by_signal(error):
            raise
        raise WrappedError(
            f"client_fn raised {describe_error(error)}", f"client_fn raised {sentence(error)}"
        ) from error
