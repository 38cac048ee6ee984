"""A round as a U-shaped client describes it to its hiding, and to the server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import nn

from flwr_splitmix.clients.client import MAX_EARLIER, Order
from flwr_splitmix.clients.evaluation_sets import Tests, sizes_of
from flwr_splitmix.clients.ushape.ends import Ends
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.hiding import ClientSide, Hiding


@dataclass(frozen=True)
class RoundSides:
    """A hiding's view of its client, the same in all rounds; `of` adds a round's own values.

    Parameters
    ----------
    hiding
        The client's hiding.
    ends
        Head and tail.
    device
        Where they are.
    batches, tests
        The client's data.
    returns
        Whether the client returns gradients to the trunk.
    """

    hiding: Hiding
    ends: Ends
    device: torch.device
    batches: Batches
    tests: Tests
    returns: bool

    def of(self, order: Order, width: int, *, texts: bool, seeded: bool) -> ClientSide:
        """Return the hiding's view of a round that begins now.

        Parameters
        ----------
        width
            Of the head's hidden states.
        texts
            Whether the inputs are token ids.
        seeded
            Whether a server that is not in this process can derive the secrets.
        """
        segments: nn.ModuleDict = self.ends.segments
        earlier, uncounted = self._earlier(order)
        return ClientSide(
            head=segments["head"],
            tail=segments["tail"],
            device=self.device,
            width=width,
            batch_size=self.batches.size,
            seed=order.seed,
            client=order.client,
            examples={"train": self.batches.examples, **sizes_of(self.tests)},
            attempt=order.attempt,
            earlier=earlier,
            uncounted=uncounted,
            averaged=order.averaged,
            returns=self.returns,
            padded=texts or self.hiding.own_masks,
            seeded=seeded,
        )

    def _earlier(self, order: Order) -> tuple[Iterator[np.ndarray], bool]:
        """Return the examples of earlier attempts at a round, and whether there may be others.

        There are none if the hiding does not account for them, or they are too many to be drawn.
        """
        lengths, uncounted = order.unheld()
        if sum(lengths) > MAX_EARLIER:
            lengths, uncounted = [], True
        if not self.hiding.accounts:
            lengths = []
        records, place = partial(self.batches.records, order.seed, order.client), self.batches.drawn
        # Each begins where the client is now, and is drawn only as it is read.
        spans = [records(place, place + length) for length in lengths]
        return chain.from_iterable(spans), uncounted


def frozen_weights(ends: Ends, order: Order) -> float | None:
    """Return, for the server, a number of the frozen weights, where heads and tails are averaged.

    A head that is not averaged may be its client's secret: a server could confirm a guess.
    """
    return ends.frozen_sketch() if order.averaged else None
