"""Trials of whether the examples of a batch change each other's uploads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from flwr_splitmix.clients.guards.budget_limits import BudgetLimits
from flwr_splitmix.clients.guards.mixing_batches import BatchMethodTrial
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.segments.across_batch import mixing_layers, needs_whole_batch
from flwr_splitmix.segments.apart_trial import ApartTrial


class BatchTrials:
    """Trials of a client's lower segment and data set, and what they have shown.

    Parameters
    ----------
    batches
        The client's training data.
    """

    def __init__(self, batches: Batches) -> None:
        self._mixes = ""  # by what examples were seen to change each other's smashed data
        self._complete = False
        self._apart = ApartTrial()
        self._data = BatchMethodTrial(batches.data, batches.size)

    def whole_batch(self, segment: nn.Module) -> str:
        """Return by what examples change each other's smashed data; "" if by nothing."""
        return needs_whole_batch(segment) or self._mixes

    def across_batch(self, segment: nn.Module) -> str:
        """Return by what examples change each other's uploads; "" if by nothing."""
        return self.whole_batch(segment) or self._data.find()

    def try_data(self, *, accounted: bool) -> None:
        """Look, once, whether the data set's own `batch` lets examples change each other.

        Parameters
        ----------
        accounted
            Whether there is a ledger, whose epsilon may not hold if it cannot be told.
        """
        self._data.find()
        if accounted:
            self.warn_of_untold_data()

    def warn_of_untold_data(self) -> None:
        """Log, once a client, if its epsilon may not hold as the trial of its data told nothing."""
        self._data.warn_of_untold()

    def try_segment(
        self, segment: nn.Module, inputs: Callable[[], Tensor], limits: BudgetLimits | None
    ) -> None:
        """Look whether examples of a batch change each other's smashed data.

        Without a ledger once; a budget must hold for any weights that a server sends later.

        Parameters
        ----------
        segment
            The lower segment, on the client's device.
        inputs
            Returns as many as in a training batch (b, ...), on the client's device.
        limits
            Those of the client's ledger; None if it has none.

        Raises
        ------
        ClientError
            If it cannot be told, and nothing may leave without an epsilon.
        """
        if self._mixes or (self._complete and limits is None):
            return
        batch = inputs()
        layer = self._apart.find(partial(mixing_layers, segment, batch), segment, batch)
        self._mixes, self._complete = layer or "", layer is not None
        if not self._complete and limits is not None:
            limits.admit_untold()
