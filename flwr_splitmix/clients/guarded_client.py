"""A client that guards what leaves it: a ledger of its privacy, its own limits and its node's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from flwr_splitmix.clients.client import Client
from flwr_splitmix.clients.privacy_budget import PrivacyBudget
from flwr_splitmix.clients.privacy_guard import NodeLedger, PrivacyGuard
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.mixers import NoisyShare, Share
from flwr_splitmix.privacy.policy import NodePolicy
from flwr_splitmix.segments.batch_norm import has_batch_norm


class GuardedClient(Client):
    """A client in front of whose uploads stands a guard.

    Attributes
    ----------
    segment, batches
        Its lower segment and training data; a subclass sets them before the guard begins.
    repeatable_secrets
        Whether noise and shuffles follow from the run's seed.
    privacy
        What it lets out at most; None for no limit.
    guard
        Charges uploads before they leave; None while nothing has a price.
    """

    segment: nn.Module
    batches: Batches
    repeatable_secrets: bool

    def _begin_guard(self, privacy: PrivacyBudget | None) -> None:
        self.privacy = privacy
        self._node: NodeLedger | None = None
        self.guard = None if privacy is None else self._make_guard(privacy)

    def govern(self, policy: NodePolicy, folder: Path | None, index: int, run: str) -> None:
        """Keep to what the node allows; its privacy ledger is then a file of the node's.

        Raises
        ------
        ClientError
            If there is a `max_epsilon`, and no ledger can be kept on the node.
        """
        if self.privacy is not None or policy != NodePolicy():
            self.privacy = PrivacyBudget.on_node(self.privacy, policy)
        path = None if folder is None else folder / f"privacy-ledger-{index}.jsonl"
        self._node = NodeLedger(path, run)
        if self.privacy is not None:
            self.guard = self._make_guard(self.privacy)

    @property
    def epsilon(self) -> float | None:
        """What has been spent of the client's privacy; None without a ledger."""
        return None if self.guard is None else self.guard.epsilon

    def close(self) -> None:
        """Let go of the node's ledger."""
        if self.guard is not None:
            self.guard.close()

    def _own_guard(self) -> PrivacyGuard:
        """Return the guard; a ledger without limits is begun where there is none yet."""
        if self.guard is None:
            self.guard = self._make_guard(PrivacyBudget())
        return self.guard

    def _make_guard(self, budget: PrivacyBudget) -> PrivacyGuard:
        records = self.batches.examples
        file = None if self._node is None else self._node.open(records, budget)
        return PrivacyGuard(budget, records, self.segment, file)

    @property
    def _limited(self) -> bool:
        return self.privacy is not None and self.privacy.max_epsilon is not None

    def _admits(self, shares: Sequence[Share | None], smashed: Tensor) -> bool:
        """Return whether an upload may leave, and charge it if it has a price."""
        if self.guard is None and not any(isinstance(share, NoisyShare) for share in shares):
            return True
        guard = self._own_guard()
        shape = (len(smashed), smashed.shape[1], smashed.shape[2])
        return guard.admit(shares, shape, self.batches.indices, self.order)

    def _privacy_facts(self) -> dict[str, bool]:
        """Return what a server's ledger must know; only what is true is said."""
        facts = {
            "budget-spent": self.guard is not None and self.guard.spent,
            "repeatable-secrets": self.repeatable_secrets,
            "public-evaluation": self.privacy is not None and self.privacy.public_evaluation,
            "batch-norm": has_batch_norm(self.segment),
        }
        return {name: True for name, holds in facts.items() if holds}
