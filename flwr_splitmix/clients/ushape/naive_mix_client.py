"""Naive mixing's client: a U-shaped client with `hiding=NaiveMix(lam)`, under a name of its own."""

from __future__ import annotations

from typing import Any

from torch import nn

from flwr_splitmix.clients.ushape.client import UShapeClient
from flwr_splitmix.data.examples import ExampleSet
from flwr_splitmix.hiding import NaiveMix


class NaiveMixClient(UShapeClient):
    """`UShapeClient(head, tail, data, hiding=NaiveMix(lam), **rest)`.

    Parameters
    ----------
    lam
        See `flwr_splitmix.hiding.NaiveMix`.
    head, tail, data, **rest
        See `UShapeClient`.

    Raises
    ------
    ValueError
        If lam is out of range.
    """

    hiding: NaiveMix

    def __init__(
        self,
        head: nn.Module,
        tail: nn.Module,
        data: ExampleSet,
        *,
        lam: float = 0.5,
        **rest: Any,
    ) -> None:
        super().__init__(head, tail, data, hiding=NaiveMix(lam), **rest)
