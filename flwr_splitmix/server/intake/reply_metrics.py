"""The metrics in clients' replies: reading them, those that most clients report, their means."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Message

from flwr_splitmix.hiding.epsilons import is_epsilon
from flwr_splitmix.observers.metrics import LOSS
from flwr_splitmix.server.intake.checks import NAME, UploadError, cap_at_median
from flwr_splitmix.values import MAX_COUNT, shown

METRICS = "metrics"
"""Name of a client's own record of metrics in its reply."""

MetricKind = tuple[str, int | None]
"""Name of a metric, and the length of its list; None for a number."""


def client_means(replies: Sequence[Message]) -> dict[str, float]:
    """Return the example-weighted means of the metrics that most clients report, besides sizes.

    In the U shape they include "train-loss", as the loss is computed at the client: its weights are
    the clients' steps, which the trunk learned from alike. It is the mean over clients that had
    something to predict, however few. Of an epsilon the largest is taken: a mean would be no
    client's. It may be infinite.
    """
    reports = [m for m in map(_numbers, replies) if m.get("num-examples", 0) >= 1]
    examples = cap_at_median([int(min(m["num-examples"], MAX_COUNT)) for m in reports])
    # A client reports these itself, and they are not compared with the steps that were taken.
    steps = cap_at_median([int(min(max(m.get("num-steps", 1), 1), MAX_COUNT)) for m in reports])
    count = Counter(name for report in reports for name in report if NAME.fullmatch(name))
    means: dict[str, float] = {}
    for name in sorted(set(count) - {"num-examples", "num-steps"}):
        if name == LOSS or 2 * count[name] > len(reports):
            weights = steps if name == LOSS else examples
            weighted = [(m[name], n) for m, n in zip(reports, weights, strict=True) if name in m]
            if is_epsilon(name):
                means[name] = max(value for value, _ in weighted)
                continue
            mean = sum(value * n for value, n in weighted) / sum(n for _, n in weighted)
            if math.isfinite(mean):
                means[name] = mean
    return means


def metrics_of(reply: Message) -> dict[str, Any]:
    """Return the metrics of all of a reply's records; a mod may add one of its own.

    Of two metrics of one name, that of the client's record counts.
    """
    records = reply.content.metric_records
    merged: dict[str, Any] = {}
    for key in sorted(records, key=lambda key: key == METRICS):
        merged |= records[key]
    return merged


def _numbers(reply: Message) -> dict[str, float]:
    """Return a reply's metrics that are finite numbers; any other epsilon is infinite.

    Without it, the largest of the others' would look like a bound for all.
    """
    metrics = metrics_of(reply)
    numbers = {name: _finite_or_infinite(value) for name, value in metrics.items()}
    finite = {name: number for name, number in numbers.items() if number < math.inf}
    return finite | epsilons_in(metrics)


def epsilons_of(reply: Message) -> dict[str, float]:
    """Return the epsilons that a client reports, by the metric's name; infinite if not finite."""
    return epsilons_in(metrics_of(reply))


def epsilons_in(numbers: Mapping[Any, Any]) -> dict[str, float]:
    """Return the epsilons among a client's numbers; anything but a finite number is infinite."""
    return {
        name: _finite_or_infinite(value)
        for name, value in numbers.items()
        if isinstance(name, str) and is_epsilon(name) and NAME.fullmatch(name)
    }


def _finite_or_infinite(value: object) -> float:
    """Return a finite number as a float; infinity for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.inf
    try:
        number = float(value)
    except OverflowError:
        return math.inf
    return number if math.isfinite(number) else math.inf


def _kinds(reply: Message) -> set[MetricKind]:
    return {
        (name, len(value) if isinstance(value, list) else None)
        for name, value in metrics_of(reply).items()
    }


def common_metrics(replies: Sequence[Message]) -> set[MetricKind]:
    """Return the metrics that more than half of the clients have, and always "num-examples".

    Flower's aggregators need the same metrics from every client: metrics of only a few clients
    are dropped, rather than the clients that lack them. So is the loss if one client has none: it
    had nothing to predict.
    """
    count = Counter(kind for reply in replies for kind in _kinds(reply))
    common = {kind for kind, n in count.items() if 2 * n > len(replies)} | {("num-examples", None)}
    return common - ({(LOSS, None)} if count[LOSS, None] < len(replies) else set())


def read_metrics(reply: Message, common: set[MetricKind], examples: int | None) -> dict[str, Any]:
    """Return the common metrics of a reply, sorted by name.

    Raises
    ------
    UploadError
        If one is missing or not finite (an epsilon may be infinite), or the number of examples is
        not the described one.
    """
    metrics = metrics_of(reply)
    if "num-examples" not in metrics:
        check_examples(None, examples)
    if lacking := sorted(name for name, _ in common - _kinds(reply)):
        raise UploadError(
            "returned not all of the metrics that most clients did: "
            f"{lacking[0]!r:.60} is missing or of another length"
        )
    common_values = {name: metrics[name] for name, _ in sorted(common, key=lambda kind: kind[0])}
    if not all(
        _all_finite(value) or (is_epsilon(name) and value == math.inf)
        for name, value in common_values.items()
    ):
        raise UploadError("returned metrics that are NaN or infinite")
    check_examples(common_values["num-examples"], examples)
    return common_values if examples is None else {**common_values, "num-examples": examples}


def _all_finite(value: Any) -> bool:
    """Return whether a metric, a number or a list, has only numbers that floats can hold."""
    numbers = value if isinstance(value, list) else [value]
    return math.inf not in map(_finite_or_infinite, numbers)


def check_examples(reported: Any, described: int | None) -> None:
    """Raise UploadError unless a client has the described number of examples, if it is known."""
    if isinstance(reported, list) or reported is None:
        raise UploadError("returned no num-examples, the number of its examples, in its metrics")
    if described is None and not (1 <= reported <= MAX_COUNT and reported == int(reported)):
        raise UploadError(f"has {shown(reported)} examples; it must be 1 to {MAX_COUNT}")
    if described is not None and reported != described:
        examples = "1 example" if reported == 1 else f"{shown(reported)} examples"
        raise UploadError(f"has {examples} now, and reported {described} before")
