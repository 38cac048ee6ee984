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
    """Trials of a client's lower segment and data set, and their results.

    Parameters
    ----------
    batches
        The client's training data.
    """

    def __init__(self, batches: Batches) -> None:
        self._mixes = ""  # what was seen to couple the examples' smashed data
        self._complete = False
        self._apart = ApartTrial()
        self._data = BatchMethodTrial(batches.data, batches.size)

    def smashed_coupling(self, segment: nn.Module) -> str:
        """Return the layer or buffer that couples examples' smashed data; "" if none."""
        return needs_whole_batch(segment) or self._mixes

    def upload_coupling(self, segment: nn.Module) -> str:
        """Return the part that couples examples' uploads, the data set included; "" if none."""
        return self.smashed_coupling(segment) or self._data.find()

    def try_data(self, *, accounted: bool) -> None:
        """Try, once, whether the data set's own `batch` lets examples change each other.

        Parameters
        ----------
        accounted
            Whether there is a ledger, whose epsilon may not hold if the trial is inconclusive.
        """
        self._data.find()
        if accounted:
            self.warn_of_inconclusive_data_trial()

    def warn_of_inconclusive_data_trial(self) -> None:
        """Warn, once a client, if its epsilon may not hold, as its data's trial is inconclusive."""
        self._data.warn_of_inconclusive_trial()

    def try_segment(
        self, segment: nn.Module, inputs: Callable[[], Tensor], limits: BudgetLimits | None
    ) -> None:
        """Try whether examples of a batch change each other's smashed data.

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
            If the trial is inconclusive, and nothing may leave without an epsilon.
        """
        if self._mixes or (self._complete and limits is None):
            return
        batch = inputs()
        layer = self._apart.find(partial(mixing_layers, segment, batch), segment, batch)
        self._mixes, self._complete = layer or "", layer is not None
        if not self._complete and limits is not None:
            limits.refuse_inconclusive_trial()
