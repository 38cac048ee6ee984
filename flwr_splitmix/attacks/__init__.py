"""What a curious server can do with what it was sent."""

from flwr_splitmix.attacks.blind_source import blind_source, separate_gradients
from flwr_splitmix.attacks.gradient_ratio import Ratio, gradient_ratio
from flwr_splitmix.attacks.read_labels import read_labels
from flwr_splitmix.attacks.read_tokens import Reading, read_tokens
from flwr_splitmix.attacks.recorder import Recorder, Recording
from flwr_splitmix.attacks.repeated_text import Common, repeated_text
from flwr_splitmix.attacks.score import Score, score

__all__ = [
    "Common",
    "Ratio",
    "Reading",
    "Recorder",
    "Recording",
    "Score",
    "blind_source",
    "gradient_ratio",
    "read_labels",
    "read_tokens",
    "repeated_text",
    "score",
    "separate_gradients",
]
