"""The limits of a client's budget, which are checked before anything is charged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from flwr_splitmix.accounting.uploads import covered, release_of
from flwr_splitmix.clients.client import ClientError, Order
from flwr_splitmix.clients.guards.first_weights import FirstWeights
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.mixers import Share
from flwr_splitmix.privacy import Event, Exposure, Ledger


class BudgetLimits:
    """Refuses what a budget does not allow, whatever has been spent.

    Parameters
    ----------
    budget
        The client's budget.
    upload_coupling
        Returns the part by which a record changes uploads of others; "" if none.
    first_weights
        The run's first lower segment, which a server may not replace unless averaging is allowed.
    """

    def __init__(
        self, budget: PrivacyBudget, upload_coupling: Callable[[], str], first_weights: FirstWeights
    ) -> None:
        self.budget = budget
        self._upload_coupling = upload_coupling
        self._first_weights = first_weights

    def check_round(self, order: Order, arrays: Mapping[str, Tensor] | None) -> None:
        """Refuse a round that would send or replace the lower segment, unless averaging is allowed.

        Parameters
        ----------
        arrays
            The lower segment that the server sent; None if it sent none.

        Raises
        ------
        ClientError
            If averaging is not allowed.
        """
        if self.budget.averages:
            return
        if order.averaged:
            raise ClientError(
                f"this client has {self.budget.refusing_option}, and averaging would send its "
                "lower segment, from which crafted gradients read its data; take a strategy that "
                "does not average, or allow it (a node: allow-averaging)"
            )
        self._first_weights.check(arrays, self.budget.refusing_option)

    def refuse_inconclusive_trial(self) -> None:
        """Refuse a lower segment that may mix a batch's examples: its trial is inconclusive.

        Raises
        ------
        ClientError
            If there is a `max_epsilon`, or `allow_plain` is false.
        """
        if self.budget.requires_epsilon:
            raise ClientError(
                f"this client has {self.budget.refusing_option}, and it could not be determined "
                "whether its lower segment mixes the examples of a batch, which would leave no "
                "epsilon (the client's log says why): take one that can be copied (copy.deepcopy), "
                "returns finite numbers with random weights, draws random numbers from the "
                "generators of torch, NumPy or Python, and depends neither on the time nor on its "
                "number of calls"
            )

    def check_kinds(self, shares: Sequence[Share | None]) -> None:
        """Refuse shares that have no epsilon whatever the data, before any data are touched.

        Mixing inputs can fail, and a failure would reveal labels.

        Raises
        ------
        ClientError
            If there is a `max_epsilon`, or `allow_plain` is false.
        """
        if self.budget.requires_epsilon:
            requested = [share for share in shares if share is not None]
            releases = [release_of(share, 1, 1) for share in requested if not covered(share)]
            self.require_epsilon([*releases, *self.of_segment()])

    def require_epsilon(self, events: Sequence[Event]) -> None:
        """Refuse releases that have no epsilon, if they need one; raises as `check_kinds`."""
        if not self.budget.requires_epsilon:
            return
        alone = Ledger(self.budget.relation)
        alone.charge(*events)
        because = alone.statement(self.budget.delta).unbounded_because
        if because:
            cause = f" (here: {layer})" if (layer := self._upload_coupling()) else ""
            raise ClientError(
                f"this client has {self.budget.refusing_option}, and what is asked of it has no "
                f"epsilon: {'; '.join(because)}{cause}"
            )

    def of_segment(self) -> list[Event]:
        """Return the events of any upload of this lower segment, beyond those of its share."""
        return [Exposure("batch-norm")] if self._upload_coupling() else []
