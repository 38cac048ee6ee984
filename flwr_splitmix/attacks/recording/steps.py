"""A recorded step, as the server with its mixer saw it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from flwr_splitmix.mixers import Plan, Upload

Batches = Mapping[int, Tensor]
"""By client, the positions of a step's examples in a set of images, int64 (b,)."""

Orders = Mapping[int, Tensor]
"""By client, the order of patches drawn by its frozen edge, int64 (b, N); see `Origin.order`."""


@dataclass(frozen=True)
class Step:
    """One training step of the L shape, as the server with its mixer saw it.

    Parameters
    ----------
    server_round, number
        Round and step; steps are counted within the round, from 0.
    plan
        The mixing groups and their shares.
    uploads
        The uploads that arrived, by client.
    gradient
        (groups * b, prefix + N, d), gradient of each group's loss at the mixture.
    loss
        Scalar, the mean over the groups; or (groups * b,), one per row.
    drawn
        By client, how many batches it had been asked for before, over all rounds.
    ids
        By client, the ids of its examples, int64 (b,), if it sends ids. The recorder has the labels
        in their place, as the server's mixer does: code that knows the batches adds them.
    """

    server_round: int
    number: int
    plan: Plan
    uploads: Mapping[int, Upload]
    gradient: Tensor | None = None
    loss: Tensor | None = None
    drawn: Mapping[int, int] = field(default_factory=dict)
    ids: Mapping[int, Tensor] = field(default_factory=dict)
