"""The events that observers see, by their public name; they are defined beside the observers."""

from flwr_splitmix.observers.events import (
    EvaluationResult,
    Exchange,
    RoundBegun,
    RoundDone,
    StepDone,
    StepResult,
)

__all__ = [
    "EvaluationResult",
    "Exchange",
    "RoundBegun",
    "RoundDone",
    "StepDone",
    "StepResult",
]
