"""A client that guards its uploads: a privacy ledger, with its own limits and its node's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from flwr_splitmix.clients.client import Client, ClientError
from flwr_splitmix.clients.guards.budget_limits import BudgetLimits
from flwr_splitmix.clients.guards.earlier_attempts import FirstAsked
from flwr_splitmix.clients.guards.first_weights import FirstWeights
from flwr_splitmix.clients.guards.mixing_batches import mixing_batch
from flwr_splitmix.clients.guards.node_ledger import NodeLedger
from flwr_splitmix.clients.guards.node_remarks import NodeRemarks
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.clients.guards.privacy_guard import BatchRequest, PrivacyGuard
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.mixers import NoisyShare, Share
from flwr_splitmix.privacy.events import Channel
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.segments.across_batch import (
    mixing_layers,
    needs_whole_batch,
    warn_of_untold,
)
from flwr_splitmix.segments.state_digest import state_digest


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
        self._mixes = ""  # by what examples were seen to change each other's smashed data
        self._data_mix: str | None = None  # by what they change each other's inputs, once tried
        self._data_untold = ""  # why the trial could not tell
        self._apart: bytes | None = None
        """Digest of lower segment and inputs that were last seen to keep examples apart."""
        self._looked = self._told_incomplete = False
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
        self._warn_of_untold_data()
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
        return needs_whole_batch(self.segment) or self._mixes

    def _across_batch(self) -> str:
        """Return by what examples change each other's uploads; "" if by nothing."""
        return self._whole_batch or self._data_mix or ""

    def _try_data(self) -> None:
        """Look, once, whether the data set's own `batch` lets examples change each other."""
        if self._data_mix is None:
            self._data_mix, self._data_untold = mixing_batch(self.batches.data, self.batches.size)
            if self.guard is not None:
                self._warn_of_untold_data()

    def _warn_of_untold_data(self) -> None:
        """Log, once a client, if its epsilon may not hold as the trial of its data told nothing."""
        if self._data_untold:
            data = type(self.batches.data).__name__
            warn_of_untold(f"batch of the data set {data}", self._data_untold)
            self._data_untold = ""

    def _try_segment(self, inputs: Callable[[], Tensor]) -> None:
        """Look whether examples of a batch change each other's smashed data.

        Without a guard once; a budget must hold for any weights that a server sends later.

        Parameters
        ----------
        inputs
            Returns as many as in a training batch (b, ...), on the client's device.

        Raises
        ------
        ClientError
            If it cannot be told, and nothing may leave without an epsilon.
        """
        if not self._looked or self.guard is not None:
            self._looked = self._find_mixing_layers(inputs(), again=self._looked)

    def _find_mixing_layers(self, inputs: Tensor, *, again: bool) -> bool:
        """Return whether the trial was complete; else other weights may show more.

        The answer depends on weights and inputs, so it holds for no other client and no other
        weights; it is kept as long as these are the same to the last bit.

        Parameters
        ----------
        again
            Whether a trial with these was complete before; this one has only the current weights.
        """
        if self._mixes:
            return True
        state = state_digest(self.segment, inputs)
        if again and state is not None and state == self._apart:
            return True
        found = mixing_layers(
            self.segment, inputs, renewed=not again, warns=not self._told_incomplete
        )
        self._apart = state if found == "" else None
        if found is None:
            self._told_incomplete = True
            if self.guard is not None:
                self.guard.limits.admit_untold()
        if found:
            self._mixes = found
        return found is not None

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
            shape=(len(smashed), smashed.shape[1], smashed.shape[2]),
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
