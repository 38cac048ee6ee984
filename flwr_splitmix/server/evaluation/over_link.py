"""Common parts of both shapes' evaluation over the link: sizes, batches, metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from flwr.app import MetricRecord

from flwr_splitmix.clients.evaluation_sets import batches_in, stop_of
from flwr_splitmix.events import EvaluationResult
from flwr_splitmix.links import Clients
from flwr_splitmix.server.evaluation.time_limit import TimeLimit
from flwr_splitmix.server.intake.checks import cap_at_median
from flwr_splitmix.server.naming import name_clients
from flwr_splitmix.words import are, counted

log = logging.getLogger("flwr.splitmix")

Kind = Literal["federated", "benchmark"]
"""Each client's own test split, weighted by its size; or the common public test set."""

Evaluation = Literal["none", "federated", "benchmark"]
"""The kind of a strategy's evaluation over the link; central evaluation is an `evaluate_fn`."""

MAX_TESTS = 1_000_000
"""Most test examples that a client is asked for, however many it reports."""


def sizes_of_tests(clients: Clients, kind: Kind, *, in_parts: bool = True) -> dict[int, int]:
    """Return the number of test examples to ask of each client that reports any.

    Numbers are capped at `MAX_TESTS`, and relative to the other clients' (`cap_at_median`). A
    warning is logged if no client has any, or if benchmark sets differ in size.

    Parameters
    ----------
    in_parts
        Whether a client can be tested on a part of its set; else those whose number is capped are
        left out.
    """
    sizes: dict[int, int] = {}
    set_sizes: dict[int, int] = {}
    for client in clients.alive:
        if size := clients.descriptions[client].tests(kind):
            set_sizes[client], sizes[client] = size, min(size, MAX_TESTS)
    if clients.alive and not sizes:
        argument = "test_data" if kind == "federated" else "benchmark_data"
        log.warning(
            "nothing is evaluated: no client has %s test data; give clients %s, or set evaluation "
            "to 'none'",
            kind,
            argument,
        )
    if kind == "benchmark" and len(set(sizes.values())) > 1:
        log.warning(
            "clients have benchmark test sets of %d to %d examples, but the set should be the same "
            "for all: the result is a mean over different sets",
            min(sizes.values()),
            max(sizes.values()),
        )
    capped = dict(zip(sizes, cap_at_median(list(sizes.values())), strict=True))
    cut = [client for client in sizes if capped[client] < set_sizes[client]]
    at_limit = [client for client in cut if capped[client] == MAX_TESTS]
    far_above = [client for client in cut if capped[client] < MAX_TESTS]
    for some, reason in (
        (far_above, "far more test data than the others have, up to %d, would keep them waiting"),
        (at_limit, f"%d test examples are more than the {MAX_TESTS:,} that are asked for"),
    ):
        if some:
            log.warning(
                f"%s %s: {reason}",
                name_clients(some),
                f"{are(len(some))} evaluated on {counted(capped[some[0]], 'example')}"
                f"{'' if len(some) == 1 else ' each'}"
                if in_parts
                else f"{are(len(some))} not evaluated",
                max(set_sizes[client] for client in some),
            )
    return capped if in_parts else {c: size for c, size in capped.items() if c not in cut}


def spread_of(accuracies: Sequence[float], examples: Sequence[int]) -> float:
    """Return the standard deviation of clients' accuracies around their mean.

    Both are weighted by the numbers of examples, as the accuracy of all clients is; a client
    with one example would otherwise count like one with a thousand.
    """
    each = np.asarray(accuracies, dtype=np.float64)
    mean = np.average(each, weights=examples)
    return float(np.sqrt(np.average((each - mean) ** 2, weights=examples)))


def batches_of_tests(
    clients: Clients,
    limit: TimeLimit,
    kind: Kind,
    sizes: Mapping[int, int],
    batch: Mapping[int, int],
    at_once: int | None = None,
    least: Mapping[int, int] | None = None,
) -> Iterator[dict[int, dict[str, Any]]]:
    """Yield the requests to all clients, batch by batch, until all their tests are done.

    Clients that have not finished when the time is up are left out.

    Parameters
    ----------
    sizes, batch
        By client, its number of test examples, and how many it is asked for at once.
    at_once
        How many clients are asked at once; None asks all.
    least
        By client, the fewest examples that it sends at once: a rest of fewer is joined with the
        batch before; None: 1.
    """
    fewest = dict.fromkeys(sizes, 1) if least is None else least
    counts = {c: batches_in(size, batch[c], fewest[c]) for c, size in sizes.items()}
    for number in range(max(counts.values(), default=0)):
        remaining = [c for c in clients.alive if number < counts.get(c, 0)]
        if not remaining:
            return
        for first in range(0, len(remaining), at_once or len(remaining)):
            if limit.over:
                finished = {c for c in remaining[:first] if counts[c] == number + 1}
                limit.leave_out(clients, [c for c in remaining if c not in finished])
                return
            yield {
                client: {
                    "kind": kind,
                    "start": (start := number * batch[client]),
                    "stop": stop_of(start, sizes[client], batch[client], fewest[client]),
                }
                for client in remaining[first : first + (at_once or len(remaining))]
            }


def to_record(result: EvaluationResult) -> MetricRecord:
    """Return an evaluation as Flower's metrics."""
    return MetricRecord(
        {
            "accuracy": result.accuracy,
            **({} if result.loss is None else {"loss": result.loss}),
            "spread": result.spread or 0.0,
            "num-examples": result.examples,
            **result.scores,
        }
    )
