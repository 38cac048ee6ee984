"""MixGuard's client: a U-shaped client with `hiding=MixGuard(...)`, under a name of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from flwr_splitmix.clients.client import ClientError
from flwr_splitmix.clients.ushape.client import UShapeClient
from flwr_splitmix.data.examples import ExampleSet
from flwr_splitmix.hiding import MixGuard, MixGuardOptions
from flwr_splitmix.hiding.mixguard import Calibration


class MixGuardClient(UShapeClient):
    """`UShapeClient(head, tail, data, hiding=MixGuard(public, ...), **rest)`.

    Parameters
    ----------
    public, vocab_size, special_ids, options
        See `flwr_splitmix.hiding.MixGuard`.
    head, tail, data, **rest
        See `UShapeClient`.

    Raises
    ------
    ClientError
        If there is no public text, no word for secret tokens, or no training text.
    """

    def __init__(
        self,
        head: nn.Module,
        tail: nn.Module,
        data: ExampleSet,
        public: ExampleSet,
        *,
        vocab_size: int,
        special_ids: Sequence[int] = (),
        options: MixGuardOptions | None = None,
        **rest: Any,
    ) -> None:
        try:
            hiding = MixGuard(
                public, vocab_size=vocab_size, special_ids=special_ids, options=options
            )
        except ValueError as error:
            raise ClientError(str(error)) from None
        super().__init__(head, tail, data, hiding=hiding, **rest)

    @property
    def hiding(self) -> MixGuard:
        """MixGuard, the client's half."""
        hiding = super().hiding
        assert isinstance(hiding, MixGuard)
        return hiding

    @property
    def options(self) -> MixGuardOptions:
        """MixGuard's options."""
        return self.hiding.options

    @property
    def calibration(self) -> Calibration | None:
        """The calibrator with its optimizer; None if there is none (yet)."""
        return self.hiding.calibration
