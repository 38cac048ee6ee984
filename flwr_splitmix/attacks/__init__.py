"""Attacks on what clients send, by a curious server and by other adversaries."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flwr_splitmix.attacks.attacked import Attacked
from flwr_splitmix.attacks.base import Attack, Guess, View
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.recorder import Recorder
from flwr_splitmix.attacks.recording.disk_trace import DiskTrace
from flwr_splitmix.attacks.release import Release
from flwr_splitmix.attacks.scoring.cosine_scores import Score, score
from flwr_splitmix.attacks.texts.blind_source import blind_source, separate_gradients
from flwr_splitmix.attacks.texts.gradient_ratio import Ratio, gradient_ratio
from flwr_splitmix.attacks.texts.read_labels import read_labels
from flwr_splitmix.attacks.texts.read_tokens import TokenReading, read_tokens
from flwr_splitmix.attacks.texts.repeated_text import SharedMessages, repeated_text

if TYPE_CHECKING:
    from flwr_splitmix.attacks.running.leak import measure_leak

__all__ = [
    "Attack",
    "Attacked",
    "Budget",
    "DiskTrace",
    "Guess",
    "Knowledge",
    "NotApplicable",
    "Pictures",
    "Ratio",
    "Recorder",
    "Release",
    "Score",
    "SharedMessages",
    "TokenReading",
    "View",
    "blind_source",
    "gradient_ratio",
    "measure_leak",
    "read_labels",
    "read_tokens",
    "repeated_text",
    "score",
    "separate_gradients",
]


def __getattr__(name: str) -> Any:
    """Import `measure_leak` on first access: it needs scipy, and to record a run does not."""
    if name == "measure_leak":
        return import_module("flwr_splitmix.attacks.running.leak").measure_leak
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
