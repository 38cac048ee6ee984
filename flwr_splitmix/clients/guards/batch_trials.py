"""Trials of whether the examples of a batch change each other's uploads."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from flwr_splitmix.clients.guards.budget_limits import BudgetLimits
from flwr_splitmix.clients.guards.mixing_batches import mixing_batch
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.segments.across_batch import (
    mixing_layers,
    needs_whole_batch,
    warn_of_untold,
)
from flwr_splitmix.segments.state_digest import state_digest


class BatchTrials:
    """Trials of a client's lower segment and data set, and what they have shown.

    Parameters
    ----------
    batches
        The client's training data.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._mixes = ""  # by what examples were seen to change each other's smashed data
        self._data_mix: str | None = None  # by what they change each other's inputs, once tried
        self._data_untold = ""  # why the trial could not tell
        self._apart: bytes | None = None
        """Digest of lower segment and inputs that were last seen to keep examples apart."""
        self._looked = self._told_incomplete = False

    def whole_batch(self, segment: nn.Module) -> str:
        """Return by what examples change each other's smashed data; "" if by nothing."""
        return needs_whole_batch(segment) or self._mixes

    def across_batch(self, segment: nn.Module) -> str:
        """Return by what examples change each other's uploads; "" if by nothing."""
        return self.whole_batch(segment) or self._data_mix or ""

    def try_data(self, *, accounted: bool) -> None:
        """Look, once, whether the data set's own `batch` lets examples change each other.

        Parameters
        ----------
        accounted
            Whether there is a ledger, whose epsilon may not hold if it cannot be told.
        """
        if self._data_mix is None:
            self._data_mix, self._data_untold = mixing_batch(self._batches.data, self._batches.size)
            if accounted:
                self.warn_of_untold_data()

    def warn_of_untold_data(self) -> None:
        """Log, once a client, if its epsilon may not hold as the trial of its data told nothing."""
        if self._data_untold:
            data = type(self._batches.data).__name__
            warn_of_untold(f"batch of the data set {data}", self._data_untold)
            self._data_untold = ""

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
        if not self._looked or limits is not None:
            self._looked = self._find_mixing_layers(segment, inputs(), limits)

    def _find_mixing_layers(
        self, segment: nn.Module, inputs: Tensor, limits: BudgetLimits | None
    ) -> bool:
        """Return whether the trial was complete; else other weights may show more.

        The answer depends on weights and inputs, so it holds for no other client and no other
        weights; it is kept as long as these are the same to the last bit. After a complete trial,
        later ones have only the current weights.
        """
        if self._mixes:
            return True
        again = self._looked
        state = state_digest(segment, inputs)
        if again and state is not None and state == self._apart:
            return True
        found = mixing_layers(segment, inputs, renewed=not again, warns=not self._told_incomplete)
        self._apart = state if found == "" else None
        if found is None:
            self._told_incomplete = True
            if limits is not None:
                limits.admit_untold()
        if found:
            self._mixes = found
        return found is not None
