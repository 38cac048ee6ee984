"""The batches that an L-shaped client draws in a round, its own or mixed with its peers'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flwr_splitmix.clients.client import ClientError, Order
from flwr_splitmix.clients.split.input_mixing import mix_inputs
from flwr_splitmix.data.batches import Batches
from flwr_splitmix.data.examples import Example
from flwr_splitmix.mixers import InputShare, Share


class Peer(Protocol):
    """A client whose batches others may mix into theirs."""

    def batch(self, number: int) -> Example:
        """Return the batch of one step of the round, drawing it on the first call."""


class RoundBatches:
    """A client's batches of one round, each drawn once, at its first request.

    Parameters
    ----------
    batches
        The client's data.
    order
        The round.
    """

    def __init__(self, batches: Batches, order: Order) -> None:
        self._batches = batches
        self._order = order
        self._drawn: tuple[int, Example] | None = None

    def batch(self, number: int) -> Example:
        """Return the batch of one step of the round, drawing it on the first call."""
        if self._drawn is None or self._drawn[0] != number:
            order = self._order
            self._drawn = (number, self._batches.next_batch(order.seed, order.client))
        return self._drawn[1]


def inputs_asked_for(
    shares: Sequence[Share | None],
    number: int,
    client: int,
    own_client: Peer,
    peers: Sequence[Peer] | None,
) -> Example:
    """Return a step's inputs and labels: those of the client's own batch, or mixed with others'.

    Parameters
    ----------
    shares
        The step's share of each pass; an `InputShare` among them names the inputs to mix.
    number
        The step of the round, from 0.
    client, own_client
        The client's index, and the client.
    peers
        All clients of this process; None if there may be others elsewhere.

    Raises
    ------
    ClientError
        If a batch of another client is asked for and there are no `peers`; see also `mix_inputs`.
    """
    mixing = next((share for share in shares if isinstance(share, InputShare)), None)
    if mixing is None:
        return own_client.batch(number)

    def batch_of(index: int) -> Example:
        if index == client:
            return own_client.batch(number)
        if peers is None:
            raise ClientError(
                "mixing raw inputs across clients needs them all in one process (fit); "
                "within a client's own batch it works everywhere (across='batch')"
            )
        return peers[index].batch(number)

    return mix_inputs(mixing, batch_of)
