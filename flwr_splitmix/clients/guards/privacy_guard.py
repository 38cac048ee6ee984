"""A client's own ledger of uploads: it charges before sending, and refuses to exceed the budget."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from flwr_splitmix.accounting.uploads import covered, release_of
from flwr_splitmix.clients.client import ClientError, Order
from flwr_splitmix.clients.guards.budget_limits import BudgetLimits
from flwr_splitmix.clients.guards.earlier_attempts import BegunRound, EarlierAttempts, Owed
from flwr_splitmix.mixers import Share
from flwr_splitmix.privacy import Event, Exposure, Ledger
from flwr_splitmix.privacy.client_ledger import ClientLedger
from flwr_splitmix.privacy.events import Channel
from flwr_splitmix.privacy.journal import JournalError, reason_of
from flwr_splitmix.privacy.ledger_file import LedgerFile
from flwr_splitmix.seeding import secrets_are_seeded

log = logging.getLogger("flwr.splitmix")


class PrivacyGuard:
    """Charges one client's releases, example by example, before they leave.

    Parameters
    ----------
    limits
        The limits of the client's budget.
    records
        Number of training examples.
    file
        Where the node records what was spent; None keeps the ledger with the client's state.
    trains
        Whether the lower segment has weights to train.
    on_node
        Whether a node keeps the ledger, in which noise from the run's seed counts as none.

    Attributes
    ----------
    spent
        Whether a release was refused.
    """

    def __init__(
        self,
        limits: BudgetLimits,
        records: int,
        file: LedgerFile | None,
        *,
        trains: bool,
        on_node: bool,
    ) -> None:
        self.limits, self.budget = limits, limits.budget
        self._own_ledger = ClientLedger(self.budget.relation, records)
        self.spent = False
        self._file, self._on_node = file, on_node
        self._trains = trains
        self._round: BegunRound | None = None
        self._uncharged_place: int | None = None  # where it begins, until its first charge
        self._attempts = EarlierAttempts(records)
        self._first: BegunRound | None = None  # with earlier attempts that are not among these yet

    @property
    def ledger(self) -> Ledger:
        """The ledger: the node's, if it keeps one."""
        return self._own_ledger if self._file is None else self._file.ledger

    @property
    def epsilon(self) -> float:
        """The epsilon that the client has spent, at the budget's delta.

        Where what it may have sent in interrupted rounds does not fit into `max_epsilon`, it is at
        least that: they were admitted by the same budget.
        """
        epsilon = self.ledger.epsilon(self.budget.delta)
        limit = self.budget.max_epsilon
        if limit is None or not (self.spent and self._attempts):
            return epsilon
        return max(epsilon, limit)

    def begin_round(self, begun: BegunRound) -> None:
        """Begin a round, to which all batches belong that are charged from now on."""
        self._round, self._uncharged_place = begun, begun.place

    def note_first(self, begun: BegunRound) -> None:
        """Note the round in which the client is first asked for a batch with this ledger's state.

        Earlier attempts began where it began; later ones are in the ledger.
        """
        self._first = begun

    def try_charge_batch(
        self, shares: Sequence[Share | None], size: tuple[int, int], records: np.ndarray
    ) -> bool:
        """Charge the uploads of one batch of the round, unless they would exceed the budget.

        With the first is charged what earlier attempts at its round may have sent, with other
        noise, as far as the node's file does not hold it: all of it, since this attempt may be
        shorter.

        Parameters
        ----------
        shares
            The batch's share of each pass.
        size
            Tokens (prefix + N) and width d of an example's smashed data.
        records
            int64 (b,): the examples of the batch.

        Returns
        -------
        Whether they may be sent. If not, nothing is charged, now or later: `spent` is set.

        Raises
        ------
        ClientError
            If the uploads have no epsilon, and there is a `max_epsilon` or `allow_plain` is false;
            or if the charge cannot be written to the node's disk.
        """
        if (begun := self._round) is None:
            raise ClientError("this client's guard has not begun a round, so nothing is sent")
        events = self._events(shares, size)
        self.limits.require_epsilon(events)
        if self.spent and self.budget.max_epsilon is not None:
            return False
        if self._first is not None:
            first, self._first = self._first, None
            # The file holds what an attempt has sent, unless it is younger than the attempt.
            charged = 0 if self._file is None else self._file.begun[first.place]
            self._attempts.note(first.order, first.place, charged)
        earlier: list[Owed] = []
        if self._attempts:
            earlier = self._attempts.owed(shares, size, begun.records_of)
        self.limits.require_epsilon([event for owed, _ in earlier for event in owed])
        with self._held_file():  # between check and charge no other run may charge
            if self._would_exceed(events, records, earlier):
                self.spent = True
                log.warning(
                    "client %d sends nothing more: another upload would bring its epsilon above "
                    "max_epsilon = %g%s",
                    begun.order.client,
                    self.budget.max_epsilon,
                    self._why_unbounded,
                )
                return False
            self._charge_batch(events, records, earlier)
        return True

    def _would_exceed(
        self, events: Sequence[Event], records: np.ndarray, earlier: Sequence[Owed]
    ) -> bool:
        """Return whether a batch, with what is owed, would bring epsilon above `max_epsilon`."""
        if (limit := self.budget.max_epsilon) is None:
            return False
        after = self.ledger
        if earlier:
            after = copy.deepcopy(after)
            for releases, owing in earlier:
                after.charge(*releases, records=owing)
        return after.would_exceed(
            *events, max_epsilon=limit, delta=self.budget.delta, records=records
        )

    def _charge_batch(
        self, events: Sequence[Event], records: np.ndarray, earlier: Sequence[Owed]
    ) -> None:
        """Charge what is owed for earlier attempts, then a batch; the first notes its place."""
        for releases, owing in earlier:
            self._charge(releases, owing)
        if earlier:  # all of it: what a full disk keeps from being charged stays owed
            self._attempts.forget()
        self._charge(events, records, place=self._uncharged_place)
        self._uncharged_place = None

    @contextmanager
    def _held_file(self) -> Iterator[None]:
        """Hold the node's file, if there is one."""
        try:
            with nullcontext() if self._file is None else self._file.held():
                yield
        except (OSError, JournalError) as error:
            raise ClientError(
                f"this node's privacy ledger cannot be written ({reason_of(error)}), so nothing is "
                "sent"
            ) from None

    def _charge(
        self,
        events: Sequence[Event],
        records: np.ndarray | None = None,
        *,
        place: int | None = None,
    ) -> None:
        """Charge releases; in a file with the round's `place` in the data, if they open it."""
        if self._file is None:
            self.ledger.charge(*events, records=records)
            return
        with self._held_file():
            self._file.charge(self.ledger.price(*events), records, begins=place)

    @property
    def _why_unbounded(self) -> str:
        because = self.ledger.statement(self.budget.delta).unbounded_because
        return f"; what has left before has none: {'; '.join(because)}" if because else ""

    def expose(self, channel: Channel) -> None:
        """Charge what left without an epsilon before this guard was made."""
        self._charge([Exposure(channel)])

    def charge_evaluation(self) -> None:
        """Charge test data that are sent unmixed and without noise, or refuse to send them.

        Raises
        ------
        ClientError
            If they are not public, and there is a `max_epsilon` or `allow_plain` is false.
        """
        if self.budget.public_evaluation:
            return
        if self.budget.requires_epsilon:
            raise ClientError(
                "evaluation would send this client's own test data without noise, which no "
                "epsilon covers; measure on public data (benchmark or central evaluation)"
            )
        self._charge([Exposure("evaluation")])

    def close_round(self, order: Order) -> None:
        """Charge the round's disclosures besides uploads, and log the state of the ledger."""
        if order.averaged:
            self._charge([Exposure("lower-segments")])
        # Of interest on a node with a budget; a simulation would log a line for every client.
        level = logging.DEBUG if self.budget.max_epsilon is None else logging.INFO
        if log.isEnabledFor(level):
            statement = replace(self.ledger.statement(self.budget.delta), epsilon=self.epsilon)
            log.log(level, "client %d: %s", order.client, statement)

    def _events(self, shares: Sequence[Share | None], size: tuple[int, int]) -> list[Event]:
        requested = [share for share in shares if share is not None]
        events: list[Event] = [release_of(share, *size) for share in requested]
        if self._on_node and secrets_are_seeded() and any(covered(share) for share in requested):
            events.append(Exposure("seeded"))
        if any(share.learns for share in requested):
            events.append(Exposure("gradients"))
        if self._trains:
            events.append(Exposure("training"))
        return events + self.limits.of_segment()

    def state(self) -> dict[str, Any]:
        """Return the ledger, whether the budget is spent, and what is owed, as plain values.

        A ledger that the node keeps in a file of its own is not among them.
        """
        ledger = {"ledger": self.ledger.state_dict()} if self._file is None else {}
        owed = {"owed": self._attempts.state()} if self._attempts else {}
        return {**ledger, "spent": self.spent, **owed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; a ledger that the node keeps in a file of its own has precedence.

        If there was such a file and it is missing now, what was spent is unknown: no epsilon.
        """
        if self._file is None:
            if "ledger" in state:
                self.ledger.load_state_dict(state["ledger"])
            else:
                self.ledger.charge(Exposure("uncounted"))
            self.spent |= bool(state["spent"])
        self._attempts.restore(state.get("owed", ()))
