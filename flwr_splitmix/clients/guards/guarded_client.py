"""A client that guards its uploads: a privacy ledger, with its own limits and its node's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from flwr_splitmix.clients.client import Client, ClientError
from flwr_splitmix.clients.guards.batch_trials import BatchTrials
from flwr_splitmix.clients.guards.budget_limits import BudgetLimits
from flwr_splitmix.clients.guards.earlier_attempts import FirstAsked
from flwr_splitmix.clients.guards.first_weights import FirstWeights
from flwr_splitmix.clients.guards.node_ledger import NodeLedger
from flwr_splitmix.clients.guards.node_remarks import NodeRemarks
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.clients.guards.privacy_guard import BatchRequest, PrivacyGuard
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.mixers import NoisyShare, Share
from flwr_splitmix.privacy.events import Channel
from flwr_splitmix.privacy.policy import NodePolicy


class GuardedClient(Client):
    """A client whose uploads pass a privacy guard.

    Parameters
    ----------
    batches
        Its training data.
    privacy
        The budget for its uploads; None for no limit.
    repeatable_secrets
        Whether noise and shuffles are derived from the run's seed.

    Attributes
    ----------
    segment
        Its lower segment, which a subclass has when it calls the constructor.
    guard
        Charges uploads before they leave; None until something has to be charged.
    """

    segment: nn.Module

    def __init__(
        self,
        batches: Batches,
        *,
        privacy: PrivacyBudget | None,
        repeatable_secrets: bool,
    ) -> None:
        super().__init__()
        self.batches = batches
        self.privacy, self.repeatable_secrets = privacy, repeatable_secrets
        self._trials = BatchTrials(batches)
        self._begun_at = 0
        self._first_asked: FirstAsked | None = None
        self._uncovered: Channel | None = None
        """What left first without an epsilon while there was no guard; more changes no number."""
        self._node: NodeLedger | None = None
        self._remarks: NodeRemarks | None = None
        self._first_weights = FirstWeights()
        self.guard = None if privacy is None else self._make_guard(privacy)

    def trainable_parameters(self) -> Iterable[nn.Parameter]:
        """Return the lower segment's parameters, except frozen ones."""
        return (p for p in self.segment.parameters() if p.requires_grad)

    def govern(self, policy: NodePolicy, folder: Path | None, index: int, run: str) -> None:
        """Apply the node's policy; the privacy ledger is then a file on the node.

        Raises
        ------
        ClientError
            If there is a `max_epsilon` but no ledger can be kept on the node, or nothing may leave
            without an epsilon and the client's noise is drawn from the run's seed, which the server
            knows.
        """
        if self.privacy is not None or policy.limits:
            self.privacy = PrivacyBudget.on_node(self.privacy, policy)
        required = self.privacy is not None and self.privacy.requires_epsilon
        if self.repeatable_secrets and required:
            raise ClientError(
                "this node sends nothing without noise, and this client's noise is drawn from the "
                "run's seed, which the server knows: make it without repeatable_secrets"
            )
        if not policy.trains:
            self.segment.requires_grad_(False)
        path = None if folder is None else folder / f"privacy-ledger-{index}.jsonl"
        self._node = NodeLedger(path, run)
        self._remarks = NodeRemarks(policy)
        self._first_weights = FirstWeights.on_node(folder, index, run)
        if self.privacy is not None:
            self.guard = self._make_guard(self.privacy)

    def begin_run(self) -> None:
        """Take the first weights of another run; what was spent stays."""
        self._first_weights.forget()
        self._first_asked = None

    def run(self, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run one exchange; see `Client.run`."""
        if arguments.get("plan") is not None:
            self._note_asked()
        return super().run(method, arguments)

    def _note_asked(self) -> FirstAsked:
        """Note that a batch is asked for; return the first of this run or since a `restore`.

        Other objects with this client's data may have sent what that round's order names. What
        later orders name besides was this object's, whose ledger has it.
        """
        if self._first_asked is None:
            self._first_asked = FirstAsked(self.order, self._begun_at)
        return self._first_asked

    @property
    def epsilon(self) -> float | None:
        """The epsilon that the client has spent; None without a ledger."""
        return None if self.guard is None else self.guard.epsilon

    def _own_guard(self) -> PrivacyGuard:
        """Return the guard, creating one without limits if there is none yet."""
        if self.guard is None:
            self.guard = self._make_guard(PrivacyBudget())
        return self.guard

    def _make_guard(self, budget: PrivacyBudget) -> PrivacyGuard:
        records = self.batches.examples
        file = None if self._node is None else self._node.open(records, budget)
        on_node = self._node is not None
        trains = any(p.requires_grad for p in self.segment.parameters())
        limits = BudgetLimits(budget, self._across_batch, self._first_weights)
        guard = PrivacyGuard(limits, records, file, trains=trains, on_node=on_node)
        if self._uncovered is not None:
            guard.expose(self._uncovered)
        self._trials.warn_of_untold_data()
        return guard

    def _leave_uncovered(self, channel: Channel) -> None:
        """Remember that data leave without an epsilon, for a ledger that begins later.

        On a node they are noted in its ledger, which a later run goes on with.
        """
        if self._uncovered is not None:
            return
        self._uncovered = channel
        if self._node is not None:
            self._node.expose(channel, self.batches.examples)

    def _guard_state(self) -> dict[str, Any]:
        """Return, as plain values, what is spent, told, and has left without an epsilon.

        A node's file has the last of these, if there is one.
        """
        in_file = self._node is not None and self._node.path is not None
        state: dict[str, Any] = {}
        if self._uncovered is not None and not in_file:
            state["uncovered"] = self._uncovered
        if self.guard is not None:
            state["privacy"] = self.guard.state()
        if self._remarks is not None and (told_before := self._remarks.state()):
            state["told"] = told_before
        return state

    def _restore_guard(self, meta: Mapping[str, Any]) -> None:
        """Go on from what `_guard_state` has returned."""
        self._first_asked = None
        if "privacy" in meta:
            self._own_guard().restore(meta["privacy"])
        if self._remarks is not None:
            self._remarks.restore(meta)
        self._uncovered = self._uncovered or meta.get("uncovered")
        if self.guard is not None and self._uncovered is not None:
            self.guard.expose(self._uncovered)

    @property
    def _whole_batch(self) -> str:
        """By what examples change each other's smashed data; "" if by nothing."""
        return self._trials.whole_batch(self.segment)

    def _across_batch(self) -> str:
        """Return by what examples change each other's uploads; "" if by nothing."""
        return self._trials.across_batch(self.segment)

    def _try_batches(self, inputs: Callable[[], Tensor]) -> None:
        """Look whether examples change each other's uploads; see `BatchTrials`.

        Parameters
        ----------
        inputs
            Returns as many as in a training batch (b, ...), on the client's device.

        Raises
        ------
        ClientError
            Raised by `BatchTrials.try_segment`.
        """
        limits = None if self.guard is None else self.guard.limits
        self._trials.try_segment(self.segment, inputs, limits)
        self._trials.try_data(accounted=limits is not None)

    def _admit_evaluation(self) -> None:
        """Charge test data that are about to leave without noise, or refuse to send them."""
        if self.guard is None:
            self._leave_uncovered("evaluation")
        else:
            self.guard.admit_evaluation()

    @property
    def _limited(self) -> bool:
        return self.privacy is not None and self.privacy.max_epsilon is not None

    def may_name_data(self, shares: Sequence[Share | None] = ()) -> bool:
        """Return whether an error may tell of the data, of a step with these shares.

        It would itself be a release where noise covers them, or nothing leaves without an epsilon.
        """
        required = self.privacy is not None and self.privacy.requires_epsilon
        return not (required or any(isinstance(share, NoisyShare) for share in shares))

    def _admits(self, shares: Sequence[Share | None], smashed: Tensor) -> bool:
        """Return whether an upload may leave; charge it if so."""
        if self.guard is None and not any(isinstance(share, NoisyShare) for share in shares):
            self._leave_uncovered("plain")
            return True
        guard = self._own_guard()
        order, batches = self.order, self.batches
        asked = BatchRequest(
            shares=shares,
            size=(smashed.shape[1], smashed.shape[2]),
            records=batches.indices,
            order=order,
            begun_at=self._begun_at,
            records_of=partial(batches.records, order.seed, order.client),
            first=self._note_asked(),
        )
        return guard.admit(asked)

    def _privacy_facts(self) -> dict[str, Any]:
        """Return the facts that a server's ledger needs; only true ones are included."""
        facts = {
            "budget-spent": self.guard is not None and self.guard.spent,
            "repeatable-secrets": self.repeatable_secrets,
            "public-evaluation": self.privacy is not None and self.privacy.public_evaluation,
            "batch-norm": bool(self._across_batch()),
            "goes-on": self._first_asked is not None,
            "unbounded": self._unbounded,
        }
        return {name: fact for name, fact in facts.items() if fact}

    @property
    def _unbounded(self) -> list[str]:
        """Why what has left has no epsilon, in this run or another; a node tells of no others."""
        if self._node is not None:
            return []
        if self.guard is not None:
            return list(self.guard.ledger.unbounded)
        return [] if self._uncovered is None else [self._uncovered]
