"""Checkpoints of a strategy: what one holds of it, and how it continues from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord
from torch import Tensor

from flwr_splitmix.links.ticket import to_arrays, to_tensors
from flwr_splitmix.observers import Observer
from flwr_splitmix.runs.checkpoints import Checkpoint
from flwr_splitmix.server.aggregation import LowerAggregator
from flwr_splitmix.storage import under

_LOWER = "lower"


def pack(
    server: tuple[Mapping[str, Tensor], Mapping[str, Any]],
    arrays: ArrayRecord,
    aggregator: LowerAggregator,
    observers: Sequence[Observer],
    trained: Mapping[int, int],
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a checkpoint's tensors and plain values.

    Parameters
    ----------
    server
        What the server learned: tensors and plain values.
    arrays
        The lower segment that the next round begins with.
    trained
        By client index, the last round that it finished.
    """
    tensors, meta = server
    lower = {f"{_LOWER}.{name}": tensor for name, tensor in to_tensors(arrays).items()}
    return {**tensors, **lower, **aggregator.state()}, {
        **meta,
        "trained": {str(client): done for client, done in trained.items()},
        "observers": [observer.state() for observer in observers],
    }


def unpack(
    checkpoint: Checkpoint,
    aggregator: LowerAggregator,
    observers: Sequence[Observer],
    initial: ArrayRecord,
) -> tuple[ArrayRecord, dict[int, int]]:
    """Restore aggregator and observers; return the lower segment and who trained when.

    A checkpoint keeps no order, and FedAvgM matches arrays by theirs: it is that of `initial`, the
    lower segment that the run began with. Observers are matched by their place; those that a
    checkpoint has no state of stay as they are.
    """
    aggregator.restore(checkpoint.tensors)
    for observer, state in zip(observers, checkpoint.meta.get("observers", ()), strict=False):
        if state:
            observer.restore(state)
    trained = {int(client): int(done) for client, done in checkpoint.meta["trained"].items()}
    lower = under(_LOWER, checkpoint.tensors)
    if lower.keys() == initial.keys():
        lower = {name: lower[name] for name in initial}
    return to_arrays(lower), trained
