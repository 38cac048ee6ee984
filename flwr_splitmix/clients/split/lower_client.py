"""An L-shaped client between rounds: a lower segment, data, and a guard of its uploads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from flwr_splitmix.clients.client import Client, Order
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.clients.guards.privacy_guard import PrivacyGuard
from flwr_splitmix.clients.guards.upload_guard import UploadGuard
from flwr_splitmix.clients.requests import check_numbers
from flwr_splitmix.clients.split.lower_end import LowerEnd
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.mixers import Share
from flwr_splitmix.optimizers import ScheduledOptimizer
from flwr_splitmix.privacy.policy import NodePolicy


class LowerClient(Client):
    """The part of an L-shaped client that outlives a round; a subclass takes part in rounds.

    Parameters
    ----------
    lower
        The lower segment with its optimizer.
    batches
        The training data.
    privacy
        The budget for its uploads; None for no limit.
    repeatable_secrets
        Whether noise and shuffles are derived from the run's seed.

    Attributes
    ----------
    upload_guard
        Admits or refuses what the client is about to send.
    """

    def __init__(
        self,
        lower: LowerEnd,
        batches: Batches,
        *,
        privacy: PrivacyBudget | None,
        repeatable_secrets: bool,
    ) -> None:
        super().__init__()
        self.lower, self.device = lower, lower.device
        self.batches = batches
        self.repeatable_secrets = repeatable_secrets
        self.upload_guard = UploadGuard(lower, batches, privacy)

    @property
    def segment(self) -> nn.Module:
        """The lower segment; another one may take its place between rounds."""
        return self.lower.segment

    @segment.setter
    def segment(self, segment: nn.Module) -> None:
        self.lower.segment = segment

    @property
    def optimizer(self) -> ScheduledOptimizer:
        """The lower segment's optimizer with its schedule."""
        return self.lower.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: ScheduledOptimizer) -> None:
        self.lower.optimizer = optimizer

    def trainable_parameters(self) -> Iterable[nn.Parameter]:
        """Return the lower segment's parameters, except frozen ones."""
        return (p for p in self.segment.parameters() if p.requires_grad)

    def weights(self) -> dict[str, Tensor]:
        """Return the lower segment's parameters and buffers, on the CPU; bfloat16 as float32."""
        return self.lower.weights()

    @property
    def privacy(self) -> PrivacyBudget | None:
        """The budget for its uploads, with what a node's policy allows; None for no limit."""
        return self.upload_guard.budget

    @property
    def guard(self) -> PrivacyGuard | None:
        """Charges uploads before they leave; None until something has to be charged."""
        return self.upload_guard.privacy_guard

    @property
    def epsilon(self) -> float | None:
        """The epsilon that the client has spent; None without a ledger."""
        return None if self.guard is None else self.guard.epsilon

    def may_name_data(self, shares: Sequence[Share | None] = ()) -> bool:
        """Return whether an error in a step with these shares may reveal data.

        It would itself be a release where noise covers them, or nothing leaves without an epsilon.
        """
        return self.upload_guard.may_name_data(shares)

    def govern(self, policy: NodePolicy, folder: Path | None, index: int, run: str) -> None:
        """Apply the node's policy; see `UploadGuard.govern`."""
        repeatable = self.repeatable_secrets
        self.upload_guard.govern(policy, folder, index, run, repeatable=repeatable)

    def run(self, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Run one exchange; see `Client.run`.

        The request for a batch is noted even if a subclass's own method fails before it is drawn.
        """
        if arguments.get("plan") is not None:
            self.upload_guard.note_asked()
        return super().run(method, arguments)

    def begin_run(self) -> None:
        """Take the first weights of another run; what was spent stays."""
        self.upload_guard.begin_run()

    def _take_weights(self, order: Order, arrays: Mapping[str, Tensor] | None) -> None:
        """Load what the server has sent, if anything, once it is known to be fit."""
        if arrays:  # empty: the client keeps its own
            arrays = self.lower.fitted(
                arrays, "the server's lower segment does not fit this client's"
            )
        self.upload_guard.check_weights(order, arrays)
        if arrays:
            check_numbers(
                "the server's lower segment:",
                arrays,
                bounded=self.upload_guard.bounded,
                client_tensors=self.segment.state_dict(),
            )
            self.lower.load(arrays)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state of the lower segment, the optimizer, the data position and the guard."""
        meta = {"drawn": self.batches.drawn, **self.upload_guard.state()}
        tensors, optimizer = self.lower.state()
        return tensors, meta | optimizer

    def restore(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state`, for the same segment, optimizer and data."""
        self.restore_trained(tensors, meta)
        self.upload_guard.restore(meta)

    def restore_trained(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore `state` without the privacy ledger."""
        self.lower.restore(tensors, meta)
        self.batches.drawn = int(meta["drawn"])
