"""A hiding's part in exchanges of public texts with the trunk, on which it may learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from flwr_splitmix.data.examples import ExampleSet, check_map_style, fetch
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.hiding.exchanged import SentBatch


class PublicTexts:
    """The public texts of a hiding, and what it sends and learns of them; this one sends none.

    Parameters
    ----------
    public
        Public texts, tokenised like the client's; None for none.

    Raises
    ------
    TypeError
        If they are not a map-style data set of (tokens, label) pairs.
    """

    def __init__(self, public: ExampleSet | None = None) -> None:
        if public is not None:
            _check_public(public)
        self.public = public

    @property
    def calibration_steps(self) -> int:
        """Remaining steps of calibration on public texts before the first batch."""
        return 0

    def refines(self, step: int) -> bool:
        """Return whether training step `step` (from 1, over all rounds) sends public texts."""
        return False

    def public_batch(self) -> MaskedBatch | None:
        """Draw the next batch of public texts; None if there are none."""
        return None

    def public_groups(self, sent: SentBatch) -> list[SentBatch]:
        """Return everything to send for a public batch, given the result of `obfuscate`."""
        return [sent]

    def learn_public(
        self, outputs: Sequence[Sequence[Tensor]], groups: Sequence[SentBatch], step: int | None
    ) -> None:
        """Learn from the trunk's outputs for public texts.

        Parameters
        ----------
        outputs
            For each message of each group, (b, T, d), on the client's device and without a graph.
        groups
            The result of `public_groups`.
        step
            Step of the calibration before the first batch, from 0; None alongside training.
        """


def _check_public(public: ExampleSet) -> None:
    check_map_style("public", public)
    if len(public):  # type: ignore[arg-type]
        try:
            fetch(public, np.arange(1))
        except TypeError as error:
            raise TypeError(f"public: {error}; TextSet(texts, labels=texts) makes them") from None
