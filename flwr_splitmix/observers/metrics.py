"""The metrics of a run, one row per round, and the progress line of a row."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from flwr_splitmix.events import EvaluationResult, Exchange, RoundBegun, RoundDone, StepDone
from flwr_splitmix.files.json_values import strict_json
from flwr_splitmix.observers.observer import Observer
from flwr_splitmix.runs.epsilon import epsilon_of
from flwr_splitmix.seen_keys import SeenKeys
from flwr_splitmix.words import counted, data_size, epsilon_text

log = logging.getLogger("flwr.splitmix")

LABEL_BYTES = 8
"""Bytes of a label: an int64. An image with several labels has one for each class."""

LOSS = "train-loss"
"""Clients' name for their mean loss, if the loss is computed at the client."""

LIST_RULE = "a metric that is a list has no column: report each of its numbers as a metric"
"""Why a metric is not in a run's rows, and the remedy."""


class Metrics(Observer):
    """Counts bytes and averages the loss of a round.

    Bytes are those of tensors in phase "train"; evaluation and calibration are not counted.
    `uplink_bytes_psl` are the bytes that the same steps of the same clients would have sent without
    mixing; they are counted in the L shape only.

    Attributes
    ----------
    labels
        Labels that an unmixed upload has for each sample: 1, or with several the number of classes.
    rows
        One dictionary per round, by column.
    """

    def __init__(self) -> None:
        self.labels = 1
        self._once = SeenKeys()
        self.rows: list[dict[str, Any]] = []
        self._clear()

    def _clear(self) -> None:
        self._up = self._down = self._psl = 0
        self._losses: list[Tensor] = []

    def on_begin(self, event: RoundBegun) -> None:
        """Discard the counts of an earlier round that was lost."""
        self._clear()

    def on_exchange(self, event: Exchange) -> None:
        """Count the bytes of training."""
        if event.phase == "train":
            if event.direction == "up":
                self._up += event.nbytes
            else:
                self._down += event.nbytes

    def on_step(self, event: StepDone) -> None:
        """Store the loss (as a tensor, to avoid waiting for the device) and count PSL's bytes."""
        if event.loss is not None:
            self._losses.append(event.loss)
        if event.plan is not None and event.mixed is not None:
            batch, tokens, width = event.plan.shape.size
            sample = tokens * width * event.mixed.smashed.element_size() + LABEL_BYTES * self.labels
            self._psl += len(event.uploads) * batch * sample

    def completed(self, event: RoundDone) -> RoundDone:
        """Return the event with the round's loss, bytes and row."""
        losses = [float(loss) for loss in self._losses]
        loss = sum(losses) / len(losses) if losses else event.client_means.get(LOSS)
        self._warn_of_loss(event, at_server=bool(losses))
        event = replace(event, loss=loss, uplink_bytes=self._up, downlink_bytes=self._down)
        return replace(event, row=row_of(event, self._psl))

    def _warn_of_loss(self, event: RoundDone, *, at_server: bool) -> None:
        if at_server and LOSS in event.client_means and self._once.add("loss"):
            log.warning(
                "the clients' metric %r has no column: the loss of this run is computed at the "
                "server; give it another name",
                LOSS,
            )

    def on_round(self, event: RoundDone) -> None:
        """Store the round's row: the event's, or if it has none, the one counted here."""
        self.rows.append(dict(event.row or self.completed(event).row))
        self._clear()


def row_of(event: RoundDone, uplink_bytes_psl: int = 0) -> dict[str, Any]:
    """Return a round's row of metrics."""
    slowest = max(event.client_seconds, key=lambda c: (event.client_seconds[c], -c), default=None)
    return {
        "round": event.server_round,
        "loss": event.loss,
        **evaluation_columns(event.evaluation),
        "seconds": event.seconds,
        "steps": event.steps,
        "steps_per_second": event.steps / event.step_seconds if event.step_seconds else None,
        "uplink_bytes": event.uplink_bytes,
        "downlink_bytes": event.downlink_bytes,
        "uplink_bytes_psl": uplink_bytes_psl,
        "clients_alive": event.clients_alive,
        "clients_failed": len(event.failures),
        "slowest_node": slowest,
        **_means(event),
        **_updates(event),
        **_spent(event),
        **_late(event),
    }


def evaluation_columns(shown: EvaluationResult | None) -> dict[str, Any]:
    """Return an evaluation's columns of a row: accuracy, loss, and further scores as "eval_..."."""
    scores = {} if shown is None else shown.scores
    others = ["loss"] if shown is not None and shown.loss is not None else []
    columns = _prefixed("eval_", [*scores, *others])
    return {
        "accuracy": shown.accuracy if shown else None,
        "accuracy_kind": shown.kind if shown else None,
        "accuracy_spread": shown.spread if shown else None,
        "eval_loss": shown.loss if shown else None,
        **{columns[name]: value for name, value in scores.items()},
    }


def _means(event: RoundDone) -> dict[str, float]:
    """Return the means of clients' metrics as "train_..."."""
    means = {name: mean for name, mean in event.client_means.items() if name != LOSS}
    columns = columns_of(means)
    return {columns[name]: mean for name, mean in means.items()}


def columns_of(metrics: Iterable[str]) -> dict[str, str]:
    """Return, by name, the columns that have the means of clients' metrics."""
    return _prefixed("train_", metrics)


def _prefixed(prefix: str, metrics: Iterable[str]) -> dict[str, str]:
    """Return, by name, the columns of metrics; a name that has the prefix gets no second one.

    It does if its column is that of another metric, as that of "train-top1" beside "top1", or of an
    epsilon: those are no means.
    """
    plain = {name: name.replace("-", "_") for name in metrics}
    taken = {f"{prefix}{name}" for name in plain.values()}
    return {
        name: column
        if column.startswith(prefix)
        and column not in taken
        and not f"{column}_".startswith(f"{prefix}epsilon_")
        else f"{prefix}{column}"
        for name, column in plain.items()
    }


def _updates(event: RoundDone) -> dict[str, Any]:
    """Return the norms of the clients' updates as JSON text, and the largest over the median."""
    norms = event.update_norms
    if not norms:
        return {}
    median = median_norm(norms)
    return {
        "update_norm_by_client": strict_json({str(client): n for client, n in norms.items()}),
        "update_norm_ratio": None if median is None else max(norms.values()) / median,
    }


def median_norm(norms: Mapping[int, float]) -> float | None:
    """Return the lower median of the norms of updates by client, to which others are compared.

    None if it is 0, or there are no norms: any other norm is infinitely many times as large as 0.
    """
    return statistics.median_low(norms.values()) or None if norms else None


def _spent(event: RoundDone) -> dict[str, Any]:
    """Return the largest epsilon, and epsilons by client as JSON text, as far as known."""
    if not event.epsilons:
        return {} if event.epsilon is None else {"epsilon": event.epsilon}
    by_client = {str(client): epsilon for client, epsilon in event.epsilons.items()}
    largest = max(event.epsilons.values())
    return {"epsilon": largest, "epsilon_by_client": strict_json(by_client)}


def _late(event: RoundDone) -> dict[str, Any]:
    """Return the number of late uploads, and that of each client as JSON text, if there are any."""
    if not event.late:
        return {}
    by_client = {str(client): number for client, number in event.late.items()}
    return {"uploads_late": sum(event.late.values()), "late_by_client": strict_json(by_client)}


def progress_line(row: Mapping[str, Any], num_rounds: int, seconds_left: float) -> str:
    """Return one line on a round's results and the time left in the run."""
    parts = [f"round {row['round']}/{num_rounds}"]
    if row["accuracy"] is not None:
        spread = row["accuracy_spread"]
        parts.append(
            f"top-1 {row['accuracy']:.4f}"
            + (f" ± {spread:.4f}" if spread is not None else "")
            + f" ({row['accuracy_kind']})"
        )
    for name in sorted(name for name in row if name.startswith("eval_") and name != "eval_loss"):
        if row[name] is not None:
            parts.append(f"{name.removeprefix('eval_')} {row[name]:.4g}")
    if row["loss"] is not None:
        parts.append(f"loss {row['loss']:.4f}")
    if row["steps_per_second"] is not None:
        parts.append(f"{row['steps_per_second']:.2f} steps/s")
    parts.append(f"up {data_size(row['uplink_bytes'])}, down {data_size(row['downlink_bytes'])}")
    if (epsilon := epsilon_of(row)) is not None:
        parts.append(f"epsilon {epsilon_text(epsilon)}")
    failed = f", {row['clients_failed']} failed" if row["clients_failed"] else ""
    parts.append(f"{counted(row['clients_alive'], 'client')}{failed}")
    minutes, seconds = divmod(round(seconds_left), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        parts.append(f"{hours} h {minutes:02d} min left")
    else:
        parts.append(f"{minutes} min {seconds:02d} s left" if minutes else f"{seconds} s left")
    return " | ".join(parts)
