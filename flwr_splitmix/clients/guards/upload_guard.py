"""Admission and accounting of a client's uploads, by its own limits and its node's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from flwr_splitmix.clients.client import ClientError, Order
from flwr_splitmix.clients.guards.batch_trials import BatchTrials
from flwr_splitmix.clients.guards.budget_limits import BudgetLimits
from flwr_splitmix.clients.guards.earlier_attempts import BegunRound
from flwr_splitmix.clients.guards.first_weights import FirstWeights
from flwr_splitmix.clients.guards.node_ledger import NodeLedger
from flwr_splitmix.clients.guards.node_remarks import NodeRemarks
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.clients.guards.privacy_guard import PrivacyGuard
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.description import UploadFacts
from flwr_splitmix.mixers import NoisyShare, Share
from flwr_splitmix.privacy.events import Channel
from flwr_splitmix.privacy.policy import NodePolicy


class HasSegment(Protocol):
    """Has a lower segment; another one may take its place between rounds."""

    segment: nn.Module

    def freeze(self) -> None:
        """Keep the segment as it comes."""


class UploadGuard:
    """Admits or refuses what a client is about to send, and charges it before it leaves.

    Parameters
    ----------
    lower
        Has the client's lower segment.
    batches
        The client's training data.
    budget
        The budget for its uploads; None for no limit.

    Attributes
    ----------
    budget
        As given, or what it and a node's policy both allow.
    privacy_guard
        Charges uploads before they leave; None until something has to be charged.
    """

    def __init__(self, lower: HasSegment, batches: Batches, budget: PrivacyBudget | None) -> None:
        self.budget = budget
        self._lower, self._batches = lower, batches
        self._trials = BatchTrials(batches)
        self._round: BegunRound | None = None
        self._first_asked: BegunRound | None = None
        self._uncovered: Channel | None = None
        """The first channel without an epsilon while there was no guard; more change no number."""
        self._node: NodeLedger | None = None
        self._remarks: NodeRemarks | None = None
        self._first_weights = FirstWeights()
        self.privacy_guard = None if budget is None else self._new_guard(budget)

    def govern(
        self, policy: NodePolicy, folder: Path | None, index: int, run: str, *, repeatable: bool
    ) -> None:
        """Apply the node's policy; the privacy ledger is then a file on the node.

        Parameters
        ----------
        policy, folder, index, run
            As for `Client.govern`.
        repeatable
            Whether the client's noise is drawn from the run's seed, which the server knows.

        Raises
        ------
        ClientError
            If there is a `max_epsilon` but no ledger can be kept on the node, or nothing may leave
            without an epsilon and the noise is `repeatable`.
        """
        if self.budget is not None or policy.limits:
            self.budget = PrivacyBudget.on_node(self.budget, policy)
        if repeatable and self._requires_epsilon:
            raise ClientError(
                "this node sends nothing without noise, and this client's noise is drawn from the "
                "run's seed, which the server knows: make it without repeatable_secrets"
            )
        if not policy.trains:
            self._lower.freeze()
        self._node = NodeLedger.on_node(folder, index, run)
        self._remarks = NodeRemarks(policy)
        self._first_weights = FirstWeights.on_node(folder, index, run)
        if self.budget is not None:
            self.privacy_guard = self._new_guard(self.budget)

    def begin_run(self) -> None:
        """Take the first weights of another run; what was spent stays."""
        self._first_weights.forget()
        self._first_asked = None

    def begin_round(self, order: Order, place: int) -> None:
        """Begin a round, at a place in the data: the number of batches drawn before it."""
        records_of = partial(self._batches.records, order.seed, order.client)
        self._round = BegunRound(order, place, records_of)
        if self.privacy_guard is not None:
            self.privacy_guard.begin_round(self._round)

    def check_weights(self, order: Order, arrays: Mapping[str, Tensor] | None) -> None:
        """Refuse weights that the server sent, or is to be sent; see `BudgetLimits.check_round`."""
        if self.privacy_guard is not None:
            self.privacy_guard.limits.check_round(order, arrays)

    def try_batches(self, inputs: Callable[[], Tensor]) -> None:
        """Try whether examples change each other's uploads; see `BatchTrials`.

        Parameters
        ----------
        inputs
            Returns as many as in a training batch (b, ...), on the client's device.

        Raises
        ------
        ClientError
            Raised by `BatchTrials.try_segment`.
        """
        limits = None if self.privacy_guard is None else self.privacy_guard.limits
        self._trials.try_segment(self._lower.segment, inputs, limits)
        self._trials.try_data(accounted=limits is not None)

    def note_asked(self) -> None:
        """Note that a batch is asked for, the first time in this run or since a `restore`.

        Other objects with this client's data may have sent what that round's order names. What
        later orders name besides was this object's, whose ledger has it.
        """
        if self._first_asked is None and self._round is not None:
            self._first_asked = self._round
            if self.privacy_guard is not None:
                self.privacy_guard.note_first(self._round)

    def check_plan(
        self, client: int, shares: Sequence[Share | None], examples: Callable[[], Tensor]
    ) -> None:
        """Refuse a step's shares before any data are touched.

        The arguments are as for `NodeRemarks.check`.

        Raises
        ------
        ClientError
            Raised by `BudgetLimits.check_kinds` and `NodeRemarks.check`.
        """
        if self.privacy_guard is not None:
            self.privacy_guard.limits.check_kinds(shares)
        if self._remarks is not None:
            self._remarks.check(client, shares, self._lower.segment, examples)

    def try_charge_batch(self, shares: Sequence[Share | None], smashed: Tensor) -> bool:
        """Charge the uploads of a batch if they may leave; return whether they may.

        Parameters
        ----------
        shares
            The batch's share of each pass.
        smashed
            (b, prefix + N, d).

        Raises
        ------
        ClientError
            Raised by `PrivacyGuard.try_charge_batch`.
        """
        if self.privacy_guard is None and not _noisy(shares):
            self._leave_uncovered("plain")
            return True
        size = (smashed.shape[1], smashed.shape[2])
        return self._own_guard().try_charge_batch(shares, size, self._batches.indices)

    def charge_tests(self) -> None:
        """Charge test data that are about to leave without noise, or refuse to send them."""
        if self.privacy_guard is None:
            self._leave_uncovered("evaluation")
        else:
            self.privacy_guard.charge_evaluation()

    def close_round(self, order: Order) -> None:
        """Charge a round's disclosures besides uploads; see `PrivacyGuard.close_round`."""
        if self.privacy_guard is not None:
            self.privacy_guard.close_round(order)

    @property
    def smashed_coupling(self) -> str:
        """The layer or buffer that couples examples' smashed data; "" if none."""
        return self._trials.smashed_coupling(self._lower.segment)

    @property
    def bounded(self) -> bool:
        """Whether there is a `max_epsilon`: then very large numbers of a server are refused."""
        return self.budget is not None and self.budget.max_epsilon is not None

    def may_name_data(self, shares: Sequence[Share | None]) -> bool:
        """Return whether an error in a step with these shares may reveal data."""
        return not (self._requires_epsilon or _noisy(shares))

    def facts(self) -> UploadFacts:
        """Return what a server's ledger needs to know of uploads."""
        return UploadFacts(
            budget_spent=self.privacy_guard is not None and self.privacy_guard.spent,
            public_evaluation=self.budget is not None and self.budget.public_evaluation,
            across_batch=bool(self._upload_coupling()),
            same_object=self._first_asked is not None,
            unbounded=tuple(self._unbounded),
        )

    def state(self) -> dict[str, Any]:
        """Return, as plain values, what is spent, was warned of, and left without an epsilon.

        If the node has a file, the last of these is there.
        """
        in_file = self._node is not None and self._node.path is not None
        state: dict[str, Any] = {}
        if self._uncovered is not None and not in_file:
            state["uncovered"] = self._uncovered
        if self.privacy_guard is not None:
            state["privacy"] = self.privacy_guard.state()
        if self._remarks is not None and (warned_before := self._remarks.state()):
            state["told"] = warned_before
        return state

    def restore(self, meta: Mapping[str, Any]) -> None:
        """Continue from `state`, which may be part of a larger one."""
        self._first_asked = None
        if "privacy" in meta:
            self._own_guard().restore(meta["privacy"])
        if self._remarks is not None:
            self._remarks.restore(meta)
        self._uncovered = self._uncovered or meta.get("uncovered")
        if self.privacy_guard is not None and self._uncovered is not None:
            self.privacy_guard.expose(self._uncovered)

    def _own_guard(self) -> PrivacyGuard:
        """Return the guard, creating one without limits if necessary."""
        if self.privacy_guard is None:
            self.privacy_guard = self._new_guard(PrivacyBudget())
        return self.privacy_guard

    def _new_guard(self, budget: PrivacyBudget) -> PrivacyGuard:
        records = self._batches.examples
        file = None if self._node is None else self._node.open(records, budget)
        on_node = self._node is not None
        trains = any(p.requires_grad for p in self._lower.segment.parameters())
        limits = BudgetLimits(budget, self._upload_coupling, self._first_weights)
        guard = PrivacyGuard(limits, records, file, trains=trains, on_node=on_node)
        if self._uncovered is not None:
            guard.expose(self._uncovered)
        if self._round is not None:
            guard.begin_round(self._round)
        if self._first_asked is not None:
            guard.note_first(self._first_asked)
        self._trials.warn_of_inconclusive_data_trial()
        return guard

    def _leave_uncovered(self, channel: Channel) -> None:
        """Remember that data leave without an epsilon, for a ledger that begins later.

        On a node they are noted in its ledger, which a later run continues.
        """
        if self._uncovered is not None:
            return
        self._uncovered = channel
        if self._node is not None:
            self._node.expose(channel, self._batches.examples)

    def _upload_coupling(self) -> str:
        """Return the part that couples examples' uploads, the data set included; "" if none."""
        return self._trials.upload_coupling(self._lower.segment)

    @property
    def _requires_epsilon(self) -> bool:
        return self.budget is not None and self.budget.requires_epsilon

    @property
    def _unbounded(self) -> list[str]:
        """Why earlier uploads have no epsilon, in this run or another; a node reports none."""
        if self._node is not None:
            return []
        if self.privacy_guard is not None:
            return list(self.privacy_guard.ledger.unbounded)
        return [] if self._uncovered is None else [self._uncovered]


def _noisy(shares: Sequence[Share | None]) -> bool:
    return any(isinstance(share, NoisyShare) for share in shares)
