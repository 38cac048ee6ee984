"""The lower segment that a `fit` starts from."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from flwr_splitmix.clients import Client
from flwr_splitmix.links.arrays import to_arrays

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
