"""The typed events of a run, as the server sees them and observers are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from flwr_splitmix.mixers import Mixed, Plan, Upload

__all__ = [
    "EvaluationResult",
    "Exchange",
    "Messages",
    "Phase",
    "RoundBegun",
    "RoundDone",
    "RunEnded",
    "RunStarted",
    "StepDone",
    "StepResult",
]

Phase = Literal["train", "evaluate", "calibrate"]
"""What an exchange is for.

"train" is all that a training step exchanges, the delivery of the last gradients and what is
refined on the way among it; "calibrate" is what is prepared before the first step.
"""


@dataclass(frozen=True)
class RunStarted:
    """A run begins, or continues from a checkpoint; nothing has been sent yet.

    Parameters
    ----------
    strategy
        Name of the strategy's class.
    num_rounds, first_round
        Of the whole run, and the round that comes first now: 1, or behind the checkpoint's.
    config
        The run's configuration by key; empty without a run directory.
    run_id, directory
        Of the run; None if nothing is kept on disk.
    """

    strategy: str
    num_rounds: int
    first_round: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)
    run_id: str | None = None
    directory: Path | None = None


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
    segment
        Makes the averaged lower segment's arrays, with which all clients begin the round: for
        those that want them. None where nothing is averaged.
    nodes
        Client indices of the nodes that take part: the clients', or those behind mixing groups.
    """

    server_round: int
    attempt: int
    averaged: bool
    descriptions: Mapping[int, Mapping[str, Any]]
    segment: Callable[[], Mapping[str, Tensor]] | None = None
    nodes: Sequence[int] = ()


@dataclass(frozen=True)
class Exchange:
    """One call's payload on its way to a client ("down") or its reply ("up").

    Parameters
    ----------
    method
        Name of the exchange, which is the client class's own affair: go by `phase` and by what
        the payload holds.
    payload
        Tensors and plain values, as the server sent or received them.
    nbytes
        Bytes of the tensors on the wire, as the link's codec counted them.
    phase
        What it is for.
    """

    server_round: int
    client: int
    method: str
    direction: Literal["down", "up"]
    payload: Mapping[str, Any]
    nbytes: int
    phase: Phase = "train"


@dataclass(frozen=True)
class Messages:
    """What one client of the U shape sent for the trunk.

    Parameters
    ----------
    hidden
        Tensors (b, T, d), all of one shape.
    mask
        uint8 (b, T): 1 where the trunk attends to; the same for all of them.
    """

    hidden: Sequence[Tensor]
    mask: Tensor


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
    """One training step of either shape, as the server saw it.

    Parameters
    ----------
    number
        Of the step in its round, from 0.
    uploads
        By client, what the server received and accepted for this step. L shape: `Upload`.
        U shape: `Messages`.
    gradients
        By client, what goes back to it for these uploads, with its next exchange: the cut-layer
        gradient of each. L shape: one a pass, None where the pass does not learn. U shape: one a
        message, (b, T, d).
    returned
        By client of the U shape, what it had sent back within the step: the gradient of its own
        loss at each of the trunk's outputs, (b, T, d). Empty in the L shape.
    loss
        Scalar on the server's device; None in the U shape, where clients compute it.
    plan, mixed, result
        L shape: who is mixed with whom, the mixture, and what the upper segment made of it. None
        in the U shape.
    """

    server_round: int
    number: int
    uploads: Mapping[int, Upload | Messages]
    gradients: Mapping[int, Sequence[Tensor | None]]
    returned: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)
    loss: Tensor | None = None
    plan: Plan | None = None
    mixed: Mixed | None = None
    result: StepResult | None = None


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


@dataclass(frozen=True, kw_only=True)
class RoundDone:
    """The end of a round, its evaluation included.

    Parameters
    ----------
    seconds, step_seconds
        The whole round without its evaluation, and its steps alone.
    failures
        By client index, why it did not take part or dropped out.
    client_seconds
        By client index, seconds spent in its exchanges.
    client_means
        What clients say of their round: means over examples. "train-loss", where it is theirs.
    update_norms
        By client index, the Euclidean norm of what it changed in the lower segment; empty where
        segments are not averaged.
    epsilons
        By client index, what the ledger says it has spent; empty without a ledger, and where it
        does not say whose is which.
    epsilon
        The largest of any client; None without a ledger.
    late
        By client index, how many of its uploads came too late and were left out; empty where all
        are waited for.
    loss
        Mean over the round's steps; in the U shape what the clients say of theirs. None if there
        was no step.
    uplink_bytes, downlink_bytes
        Of the tensors of the exchanges of phase "train", on the wire.
    row
        The round's row of metrics by column, as it is written to the run's directory.
    """

    server_round: int
    num_rounds: int
    seconds: float
    steps: int
    step_seconds: float
    clients_alive: int
    failures: Mapping[int, str] = field(default_factory=dict)
    client_seconds: Mapping[int, float] = field(default_factory=dict)
    evaluation: EvaluationResult | None = None
    client_means: Mapping[str, float] = field(default_factory=dict)
    update_norms: Mapping[int, float] = field(default_factory=dict)
    epsilons: Mapping[int, float] = field(default_factory=dict)
    epsilon: float | None = None
    late: Mapping[int, int] = field(default_factory=dict)
    loss: float | None = None
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    row: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunEnded:
    """A run is over, or has failed.

    Parameters
    ----------
    rounds
        Number of the last round that is finished; 0 for none.
    summary
        Totals and the last evaluation, as written to the run's directory.
    error
        What went wrong, in a sentence; "" if nothing did.
    """

    rounds: int
    summary: Mapping[str, Any]
    error: str = ""
