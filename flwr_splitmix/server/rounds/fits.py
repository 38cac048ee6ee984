"""What a `fit` starts from, and what another one of the same clients goes on with."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from flwr_splitmix.clients import Client
from flwr_splitmix.links import LocalLink
from flwr_splitmix.links.arrays import to_arrays
from flwr_splitmix.seeding import derive_seed

log = logging.getLogger("flwr.splitmix")


def first_arrays(
    given: ArrayRecord | None, clients: Sequence[Client], *, averages: bool
) -> ArrayRecord:
    """Return the lower segment that all clients of a `fit` start from; empty: their own.

    If none is given, it is taken from a client: from the first one whose weights have the most
    common names and shapes. So one client that trains only its tail does not decide for all. A
    warning tells if this replaces other clients' weights.

    Parameters
    ----------
    averages
        Whether the lower segments are averaged.
    """
    if given is not None:
        return given
    forms = [_form(client.weights()) for client in clients]
    index = forms.index(Counter(forms).most_common(1)[0][0])
    first = clients[index].weights()
    if not averages and any(_differ(first, c.weights()) for c in clients):
        log.warning(
            "all clients start from client %d's weights, which replace theirs; "
            "initial_arrays=ArrayRecord() lets each start from its own",
            index,
        )
    return to_arrays(first)


def _form(weights: Mapping[str, Tensor]) -> frozenset[tuple[str, torch.Size]]:
    """Return the names and shapes of weights."""
    return frozenset((name, tensor.shape) for name, tensor in weights.items())


def _differ(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether two lower segments have other weights."""
    return one.keys() != other.keys() or not all(
        one[name].shape == other[name].shape and torch.equal(one[name], other[name]) for name in one
    )


@dataclass(frozen=True)
class LastFit:
    """The end of a `fit`.

    Parameters
    ----------
    link
        The link to the clients, which knows that they have begun.
    arrays
        The lower segment that another round would start from.
    draw_seed
        Seed of its random draws: groups, ratios, masks, the clients of a round, and what clients
        draw besides the order of their examples.
    """

    link: LocalLink
    arrays: ArrayRecord
    draw_seed: int

    def has(self, clients: Sequence[Client]) -> bool:
        """Return whether these are its clients: the same objects, in the same order."""
        own = self.link.clients
        return len(own) == len(clients) and all(a is b for a, b in zip(own, clients, strict=True))

    @property
    def next_draw_seed(self) -> int:
        """A seed of other draws, since rounds are counted from 1 again."""
        return derive_seed(self.draw_seed, "another fit")
