"""An attack on soft labels: the class of each node's examples, by a vote over the run's steps.

It looks at soft labels alone, and supposes that nodes draw their batches from the run's seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import torch
from torch import Tensor

from flwr_splitmix.data.batches import batch_indices

_LEAST = 1e-3
"""Share that a class is given which a soft label does not have."""


def read_labels(
    soft: Sequence[Sequence[Tensor]],
    examples: Sequence[int],
    batch: int,
    seed: int,
    passes: int = 4,
) -> list[Tensor]:
    """Return the class of each node's examples, int64 (N,), as the soft labels tell.

    Parameters
    ----------
    soft
        By step from the run's first, the soft labels (batch, L) of each group.
    examples
        By node, the number of its examples.
    batch
        Examples in a batch.
    seed
        The seed from which the order of the examples is supposed to be.
    passes
        How often groups are chosen again.
    """
    groups, classes = len(soft[0]), soft[0][0].shape[1]
    nodes = range(len(examples))
    rows = [
        [torch.from_numpy(batch_indices(examples[n], batch, seed, n, step)) for n in nodes]
        for step in range(len(soft))
    ]
    shares = [torch.stack(list(step)).double().clamp(min=_LEAST).log() for step in soft]
    ways = {tuple(place % groups for place in order) for order in permutations(nodes)}
    # An example's class is in one of the groups whenever the example is in a batch.
    votes = [torch.zeros(number, classes, dtype=torch.float64) for number in examples]
    for batch_rows, step in zip(rows, shares, strict=True):
        for node in nodes:
            votes[node][batch_rows[node]] += step.amax(0)
    for _ in range(passes):
        chosen = []
        for batch_rows, step in zip(rows, shares, strict=True):
            likely = [votes[node].softmax(1)[batch_rows[node]] for node in nodes]
            fits = torch.stack([(p * step).sum((1, 2)) for p in likely])
            chosen.append(max(ways, key=lambda way: sum(float(fits[n, way[n]]) for n in nodes)))
        votes = [torch.zeros_like(vote) for vote in votes]
        for batch_rows, step, way in zip(rows, shares, chosen, strict=True):
            for node in nodes:
                votes[node][batch_rows[node]] += step[way[node]]
    return [vote.argmax(1) for vote in votes]
