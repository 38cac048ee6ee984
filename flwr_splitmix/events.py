"""The typed events of a run, as seen by the server and passed to observers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from flwr_splitmix.description import Description
from flwr_splitmix.mixers import Mixed, Plan, Upload

__all__ = [
    "EvaluationResult",
    "Exchange",
    "Messages",
    "Phase",
    "RoundBegun",
    "RoundDone",
    "RoundsMissed",
    "RunEnded",
    "RunStarted",
    "StepDone",
    "StepResult",
]

Phase = Literal["train", "evaluate", "calibrate"]
"""Purpose of an exchange.

"train" covers everything exchanged in training steps, including delivery of the last gradients
and refinement; "calibrate" covers preparation before the first step.
"""


@dataclass(frozen=True)
class RunStarted:
    """A run begins, or continues from a checkpoint; nothing has been sent yet.

    Parameters
    ----------
    strategy
        Name of the strategy's class.
    num_rounds, first_round
        Rounds of the whole run, and the first round now: 1, or the one after the checkpoint's.
    config
        The run's configuration by key; empty without a run directory.
    run_id, directory
        Id and directory of the run; None if nothing is kept on disk.
    interrupted
        Clients that may have sent something in rounds that were interrupted, as indices.
    """

    strategy: str
    num_rounds: int
    first_round: int = 1
    _: KW_ONLY
    config: Mapping[str, Any] = field(default_factory=dict)
    run_id: str | None = None
    directory: Path | None = None
    interrupted: Collection[int] = ()


@dataclass(frozen=True)
class RoundsMissed:
    """A run is resumed that has finished rounds without this observer.

    Parameters
    ----------
    rounds
        The rounds: those after the observer's last state, up to the checkpoint's.
    clients
        Indices of the clients that may have taken part in them.
    """

    rounds: range
    clients: Collection[int]


@dataclass(frozen=True)
class RoundBegun:
    """The clients of a round have attached.

    Parameters
    ----------
    attempts
        By client index, for each earlier attempt at this round: how many batches it may have sent
        then, from the place in its data on where it is now; None if that is not known.
    averaged
        Whether the lower segments are sent at the end of the round.
    descriptions
        Each client's description of itself, by client index.
    segment
        Returns, on demand, the arrays of the averaged lower segment that all clients start the
        round from. None if nothing is averaged.
    first
        Returns, on demand, the lower segment with which clients begin the run, as the server sends
        it. None if it sends none.
    nodes
        Client indices of the participating nodes: the clients themselves, or behind mixing groups.
    steps
        Most batches that a client is asked for in the round; None if that is not known.
    rounded
        Whether the link rounds uploads to a narrower format.
    """

    server_round: int
    attempts: Mapping[int, Sequence[int | None]]
    averaged: bool
    descriptions: Mapping[int, Description]
    segment: Callable[[], Mapping[str, Tensor]] | None = None
    first: Callable[[], Mapping[str, Tensor]] | None = None
    nodes: Sequence[int] = ()
    steps: int | None = None
    rounded: bool = False


@dataclass(frozen=True)
class Exchange:
    """One call's payload on its way to a client ("down") or its reply ("up").

    Parameters
    ----------
    method
        Name of the exchange, which depends on the client class: rely on `phase` and on the payload
        instead.
    payload
        Tensors and plain values, as the server sent or received them.
    nbytes
        Bytes of the tensors on the wire, as the link's codec counted them.
    phase
        Purpose of the exchange.
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
    """The messages that one client of the U shape sent for the trunk.

    Parameters
    ----------
    hidden
        Tensors (b, T, d), all of the same shape.
    mask
        uint8 (b, T): 1 at positions that the trunk attends to; the same for all tensors.
    """

    hidden: Sequence[Tensor]
    mask: Tensor


@dataclass(frozen=True)
class StepResult:
    """The upper segment's result for a mixture.

    Parameters
    ----------
    loss
        Mean over the groups of each group's batch-mean loss, a scalar tensor on the server's
        device.
    gradient
        Gradient of each group's loss with respect to the mixed smashed data, same shape; 0 in place
        of numbers that are not finite.
    """

    loss: Tensor
    gradient: Tensor


@dataclass(frozen=True)
class StepDone:
    """One training step of either shape, as the server saw it.

    Parameters
    ----------
    number
        The step's number in its round, from 0.
    uploads
        By client, what the server received and accepted for this step. L shape: `Upload`.
        U shape: `Messages`.
    gradients
        By client, the cut-layer gradients returned for these uploads with its next exchange. L
        shape: one per pass, None if the pass does not learn. U shape: one per message, (b, T, d).
    outputs
        U shape: by client, the trunk's output for each of its messages, (b, T, d). Empty in the L
        shape.
    returned
        U shape: by client, what it returned within the step, the gradient of its own loss at each
        of these outputs, (b, T, d). Empty in the L shape.
    loss
        Scalar on the server's device; None in the U shape, where clients compute it.
    plan, mixed, result
        L shape: the mixing plan, the mixture, and the upper segment's result. None in the U shape.
    """

    server_round: int
    number: int
    uploads: Mapping[int, Upload | Messages]
    gradients: Mapping[int, Sequence[Tensor | None]]
    outputs: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)
    returned: Mapping[int, Sequence[Tensor]] = field(default_factory=dict)
    loss: Tensor | None = None
    plan: Plan | None = None
    mixed: Mixed | None = None
    result: StepResult | None = None


@dataclass(frozen=True)
class EvaluationResult:
    """Top-1 accuracy (0 to 1) and mean loss, if it is known, of one kind of evaluation."""

    kind: Literal["central", "federated", "benchmark"]
    accuracy: float
    loss: float | None
    examples: int
    spread: float | None = None
    """Standard deviation of the accuracy over clients, weighted by their examples."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Further scores by name."""


@dataclass(frozen=True, kw_only=True)
class RoundDone:
    """The end of a round, including its evaluation.

    Parameters
    ----------
    seconds, step_seconds
        Duration of the round without its evaluation, and of its steps only.
    failures
        By client index, why it did not take part or dropped out, without values of the data.
    client_seconds
        By client index, seconds spent in its exchanges.
    client_means
        Means of metrics reported by clients, weighted by their examples; of "train-loss", which is
        theirs in the U shape, by their steps.
    update_norms
        By client index, the Euclidean norm of its update of the lower segment; empty if segments
        are not averaged.
    epsilons
        By client index, the epsilon it has spent; empty without a ledger, or if the ledger does
        not report single clients.
    epsilon
        The largest epsilon of any client; None without a ledger.
    late
        By client index, how many of its uploads were too late and left out; empty if all are
        awaited.
    loss
        Mean over the round's steps; in the U shape as reported by clients. None if there was no
        step.
    uplink_bytes, downlink_bytes
        Bytes on the wire of the tensors exchanged in phase "train".
    row
        The round's row of metrics by column, as written to the run's directory.
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
    """A run has ended or failed.

    Parameters
    ----------
    rounds
        Number of the last finished round; 0 for none.
    summary
        Totals and the last evaluation, as written to the run's directory.
    error
        What went wrong, as a sentence; "" if nothing did.
    public
        The same without text that may hold data, for other machines.
    """

    rounds: int
    summary: Mapping[str, Any]
    error: str = ""
    public: str = ""
