"""Observers of a run, such as metrics and the privacy ledger, and the events that they receive."""

from flwr_splitmix.events import (
    EvaluationResult,
    Exchange,
    Messages,
    Phase,
    RoundBegun,
    RoundDone,
    RoundsMissed,
    RunEnded,
    RunStarted,
    StepDone,
    StepResult,
)
from flwr_splitmix.observers.client_times import ClientTimes
from flwr_splitmix.observers.exchange_kinds import ExchangeKinds
from flwr_splitmix.observers.ledger import PrivacyLedger
from flwr_splitmix.observers.ledger_elsewhere import LedgerElsewhere
from flwr_splitmix.observers.metrics import Metrics, progress_line
from flwr_splitmix.observers.mixtures import KeptMixtures
from flwr_splitmix.observers.observer import Audience, Observer
from flwr_splitmix.observers.unfinished import UnfinishedRounds

__all__ = [
    "Audience",
    "ClientTimes",
    "EvaluationResult",
    "Exchange",
    "ExchangeKinds",
    "KeptMixtures",
    "LedgerElsewhere",
    "Messages",
    "Metrics",
    "Observer",
    "Phase",
    "PrivacyLedger",
    "RoundBegun",
    "RoundDone",
    "RoundsMissed",
    "RunEnded",
    "RunStarted",
    "StepDone",
    "StepResult",
    "UnfinishedRounds",
    "progress_line",
]
