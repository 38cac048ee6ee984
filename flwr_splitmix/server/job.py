"""A run of the loop of rounds: its inputs and its result."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from flwr_splitmix.server.evaluation.central import EvaluateFn


@dataclass(frozen=True)
class Job:
    """A run's inputs, and Flower's result, which grows with the rounds."""

    grid: Grid | None
    initial: ArrayRecord
    evaluate_fn: EvaluateFn | None
    train_config: ConfigRecord = field(default_factory=ConfigRecord)
    evaluate_config: ConfigRecord = field(default_factory=ConfigRecord)
    result: flower.Result = field(default_factory=flower.Result)
