"""The part of an evaluation over the link that both shapes share: sizes, batches, metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from flwr.app import MetricRecord

from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.links import Clients
from flwr_splitmix.server.intake.checks import UploadError, check_number, plausible

Kind = Literal["federated", "benchmark"]
"""Each client's own test split, weighted by its size; or the common public test set."""

Evaluation = Literal["none", "federated", "benchmark"]
"""What a strategy evaluates over the link; a central evaluation is an `evaluate_fn`."""


def sizes_of_tests(clients: Clients, kind: Kind) -> dict[int, int]:
    """Return by client the number of test examples that it says it has, where it has any.

    A client that says nonsense is left out of the round.
    """
    sizes: dict[int, int] = {}
    for client in clients.alive:
        size = clients.descriptions[client].get(f"{kind}-examples", 0)
        try:
            check_number(f"{kind}-examples", size, 0)
        except UploadError as error:
            clients.fail(client, str(error))
            continue
        if size:
            sizes[client] = size
    return dict(zip(sizes, plausible(list(sizes.values())), strict=True))


def batches_of_tests(
    kind: Kind, sizes: Mapping[int, int], batch: Mapping[int, int]
) -> Iterator[dict[int, dict[str, Any]]]:
    """Yield what to ask of each client, batch by batch, until all have been through their tests.

    Parameters
    ----------
    sizes, batch
        By client, its number of test examples, and of those that it is asked for at once.
    """
    count = max((-(-size // batch[client]) for client, size in sizes.items()), default=0)
    for number in range(count):
        yield {
            client: {
                "kind": kind,
                "start": number * batch[client],
                "stop": min((number + 1) * batch[client], size),
            }
            for client, size in sizes.items()
            if number * batch[client] < size
        }


def to_record(result: EvaluationResult) -> MetricRecord:
    """Return an evaluation as Flower's metrics."""
    return MetricRecord(
        {
            "accuracy": result.accuracy,
            "loss": result.loss,
            "spread": result.spread or 0.0,
            "num-examples": result.examples,
            **result.scores,
        }
    )
