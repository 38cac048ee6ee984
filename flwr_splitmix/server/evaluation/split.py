"""Three ways to measure a split model, never confused: central, federated, benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import nn
from torch.utils.data import Dataset

from flwr_splitmix.data.batches import Example, fetch
from flwr_splitmix.links import Clients
from flwr_splitmix.links.ticket import to_tensors
from flwr_splitmix.observers.events import EvaluationResult
from flwr_splitmix.server.intake.split import (
    UploadError,
    agree_on_shape,
    plausible,
    read_test_upload,
)
from flwr_splitmix.server.segments.upper import ServerSegment

Evaluation = Literal["none", "federated", "benchmark"]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

BATCH = 250


def central_evaluation(
    upper: ServerSegment, lower: nn.Module, data: Dataset[Example]
) -> EvaluateFn:
    """Make an `evaluate_fn` that scores the averaged lower segment on a test set at the server.

    Parameters
    ----------
    upper
        The strategy's server segment.
    lower
        A lower segment of the clients' kind; its weights are overwritten.
    data
        Test examples (input, label).

    Raises
    ------
    ValueError
        If the test set is empty, or has a label that the upper segment has no class for.
    """
    size = len(data)  # type: ignore[arg-type]
    if size == 0:
        raise ValueError("the test set is empty")
    lower = lower.to(upper.device)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        own = lower.state_dict()
        lower.load_state_dict({k: t.to(own[k].dtype) for k, t in to_tensors(arrays).items()})
        lower.eval()
        total, correct = 0.0, 0
        for start in range(0, size, BATCH):
            inputs, labels = fetch(data, np.arange(start, min(start + BATCH, size)))
            if int(labels.min()) < 0 or int(labels.max()) >= upper.num_classes:
                raise ValueError(
                    f"the test set has labels {int(labels.min())}..{int(labels.max())}, the model "
                    f"has classes 0..{upper.num_classes - 1}"
                )
            with torch.inference_mode():
                smashed = lower(inputs.to(upper.device))
            loss, hits = upper.score(smashed, labels)
            total, correct = total + loss, correct + hits
        return MetricRecord(
            {"accuracy": correct / size, "loss": total / size, "num-examples": size}
        )

    return evaluate


def evaluate_clients(
    clients: Clients, upper: ServerSegment, kind: Literal["federated", "benchmark"]
) -> EvaluationResult | None:
    """Score each client's pair (its lower segment, the upper segment) over the link.

    "federated" takes each client's own test split and weights by its size; "benchmark" takes the
    common public test set, and reports the mean and the spread over clients (the papers'
    accuracy). A client that sends nonsense is left out. None if no client has such data.

    Raises
    ------
    LinkError
        If no client's smashed data fit the upper segment.
    """
    if not clients.alive:
        return None
    shape, _ = agree_on_shape(clients, upper.module, upper.num_classes)
    sizes = {c: clients.descriptions[c].get(f"{kind}-examples", 0) for c in clients.alive}
    sizes = {c: size for c, size in sizes.items() if isinstance(size, int) and size > 0}
    if sizes:
        sizes = dict(zip(sizes, plausible(list(sizes.values())), strict=True))
    losses, hits = dict.fromkeys(sizes, 0.0), dict.fromkeys(sizes, 0)
    for start in range(0, max(sizes.values(), default=0), BATCH):
        payloads = {
            c: {"kind": kind, "start": start, "stop": min(start + BATCH, size)}
            for c, size in sizes.items()
            if start < size
        }
        for client, reply in clients.call("encode_test", payloads).items():
            size = payloads[client]["stop"] - payloads[client]["start"]
            try:
                smashed, labels = read_test_upload(
                    reply, replace(shape, batch=size), upper.num_classes, upper.smashed_dtype
                )
            except UploadError as error:
                clients.fail(client, str(error))
                continue
            loss, correct = upper.score(smashed, labels)
            losses[client] += loss
            hits[client] += correct
    done = [c for c in sizes if c in clients.alive]
    if not done:
        return None
    examples = sum(sizes[c] for c in done)
    each = [hits[c] / sizes[c] for c in done]
    return EvaluationResult(
        kind,
        sum(hits[c] for c in done) / examples,
        sum(losses[c] for c in done) / examples,
        examples,
        statistics.pstdev(each),
    )


def to_record(found: EvaluationResult) -> MetricRecord:
    """Return an evaluation as Flower's metrics."""
    return MetricRecord(
        {
            "accuracy": found.accuracy,
            "loss": found.loss,
            "spread": found.spread or 0.0,
            "num-examples": found.examples,
            **found.scores,
        }
    )


def central_result(record: MetricRecord | None) -> EvaluationResult | None:
    """Read what an `evaluate_fn` returned, if it says "accuracy"."""
    if record is None or not isinstance(record.get("accuracy"), (int, float)):
        return None
    return EvaluationResult(
        "central",
        float(cast(float, record["accuracy"])),
        float(cast(float, record.get("loss", float("nan")))),
        int(cast(int, record.get("num-examples", 0))),
    )
