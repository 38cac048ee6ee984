"""Central evaluation: the averaged lower segment on a test set at the server."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import nn

from flwr_splitmix.clients.explained import explained
from flwr_splitmix.data.batches import TEST_BATCH
from flwr_splitmix.data.examples import ExampleSet, fetch
from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.labels import Tally, wrong_labels
from flwr_splitmix.seeding import derive_seed, seeded_draws
from flwr_splitmix.server.evaluation.arguments import check_central, loaded
from flwr_splitmix.server.segments.upper import TrainedUpper

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""Takes a round and the lower segment's arrays; returns metrics that include "accuracy" (0 to 1).

"loss" and "num-examples" have their own places in a run's rows; further numbers become `eval_...`.
"""


def central_evaluation(upper: TrainedUpper, lower: nn.Module, data: ExampleSet) -> EvaluateFn:
    """Return an `evaluate_fn` that scores the averaged lower segment on a test set at the server.

    Parameters
    ----------
    upper
        The strategy's server segment.
    lower
        A lower segment like the clients', which is moved to the device of `upper`. While it is
        evaluated it has their weights, and afterwards its own again, in evaluation mode.
    data
        Test examples (input, label).

    Raises
    ------
    TypeError
        If `upper` is not a server segment, or `data` is not a map-style data set.
    ValueError
        If the test set is empty, if `lower` shares weights with `upper`, or (when evaluating) if
        it has NaN or infinite numbers, its labels are not the upper segment's or the clients'
        weights do not fit `lower`.
    """
    check_central(upper, lower, data)
    size = len(data)  # type: ignore[arg-type]
    if size == 0:
        raise ValueError("the test set is empty")
    lower = lower.to(upper.device)

    def score() -> Tally:
        lower.eval()
        total = Tally()
        for start in range(0, size, TEST_BATCH):
            inputs, labels = fetch(data, np.arange(start, min(start + TEST_BATCH, size)))
            if wrong := wrong_labels(labels, upper.num_classes, multi_label=upper.multi_label):
                raise ValueError(f"the labels of the test set {wrong}")
            # What a segment caches may need a graph.
            with torch.no_grad(), explained(lower, inputs):
                smashed = lower(inputs.to(upper.device))
            # A lower segment may replace NaN itself.
            if not bool(smashed.isfinite().all()) and not bool(inputs.isfinite().all()):
                raise ValueError(
                    "the test set has NaN or infinite numbers: replace them in the data set, or "
                    "leave these examples out"
                )
            total += upper.score(smashed, labels)
        return total

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        seed = derive_seed(0, "central evaluation", server_round)
        with loaded(lower, arrays), seeded_draws(upper.device, seed):
            total = score()
        return MetricRecord(
            {
                "accuracy": total.accuracy,
                "loss": total.mean_loss,
                "num-examples": size,
                **total.scores,
            }
        )

    return evaluate


def central_result(record: MetricRecord | None) -> EvaluationResult | None:
    """Convert what an `evaluate_fn` returned; None if it has no "accuracy".

    Further numbers become the result's scores.
    """
    if record is None or not isinstance(record.get("accuracy"), (int, float)):
        return None
    numbers = {name: float(v) for name, v in record.items() if isinstance(v, (int, float))}
    return EvaluationResult(
        "central",
        numbers.pop("accuracy"),
        numbers.pop("loss", None),
        int(numbers.pop("num-examples", 0)),
        scores=numbers,
    )
