"""The events that observers see, under their public name; `observers` defines them."""

from flwr_splitmix.observers.events import (
    EvaluationResult,
    Exchange,
    Messages,
    Phase,
    RoundBegun,
    RoundDone,
    RunEnded,
    RunStarted,
    StepDone,
    StepResult,
)

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
