"""What happened in a run, as the server sees it: typed events for observers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from flwr_splitmix.mixers import Mixed, Plan, Upload


@dataclass(frozen=True)
class Exchange:
    """One call's payload on its way to a client ("down") or its reply ("up").

    Parameters
    ----------
    payload
        Tensors and plain values, as the server sent or received them.
    nbytes
        Bytes of the tensors on the wire, as the link's codec counted them.
    """

    server_round: int
    client: int
    method: str
    direction: Literal["down", "up"]
    payload: Mapping[str, Any]
    nbytes: int


@dataclass(frozen=True)
class RoundBegun:
    """The clients of a round have attached.

    Parameters
    ----------
    attempt
        How often this round was begun before, and not finished.
    averaged
        Whether the lower segments are sent at the end of the round.
    descriptions
        What each client says of itself, by client index.
    """

    server_round: int
    attempt: int
    averaged: bool
    descriptions: Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class StepResult:
    """What the upper segment made of a mixture.

    Parameters
    ----------
    loss
        Mean over the groups of each group's batch-mean loss, a scalar tensor on the server's
        device.
    gradient
        Gradient of each group's loss with respect to the mixed smashed data, same shape.
    """

    loss: Tensor
    gradient: Tensor


@dataclass(frozen=True)
class StepDone:
    """One step: who was mixed with whom, what came, what the upper segment made of it."""

    server_round: int
    number: int
    plan: Plan
    uploads: Mapping[int, Upload]
    mixed: Mixed
    result: StepResult


@dataclass(frozen=True)
class EvaluationResult:
    """Top-1 accuracy (0 to 1) and mean loss of one kind of evaluation."""

    kind: Literal["central", "federated", "benchmark"]
    accuracy: float
    loss: float
    examples: int
    spread: float | None = None
    """Standard deviation of the accuracy over clients, where each has its own pair."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Further scores by name."""


@dataclass(frozen=True)
class RoundDone:
    """The end of a round.

    Parameters
    ----------
    seconds, step_seconds
        The whole round without its evaluation, and its steps alone.
    failures
        By client index, why it did not take part or dropped out.
    client_seconds
        By client index, seconds spent in its exchanges.
    epsilons
        By client index, what the ledger says it has spent; empty without a ledger.
    """

    server_round: int
    num_rounds: int
    seconds: float
    steps: int
    step_seconds: float
    clients_alive: int
    failures: Mapping[int, str]
    client_seconds: Mapping[int, float] = field(default_factory=dict)
    evaluation: EvaluationResult | None = None
    client_means: Mapping[str, float] = field(default_factory=dict)
    """What clients say of their round: means over examples. "train-loss", where it is theirs."""
    epsilons: Mapping[int, float] = field(default_factory=dict)
