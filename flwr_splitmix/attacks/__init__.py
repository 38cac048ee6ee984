"""What a curious server can do with what it was sent."""

from flwr_splitmix.attacks.blind_source import blind_source, separate_gradients
from flwr_splitmix.attacks.gradient_ratio import Ratio, gradient_ratio
from flwr_splitmix.attacks.read_tokens import Reading, read_tokens
from flwr_splitmix.attacks.recorder import Recorder, Recording
from flwr_splitmix.attacks.score import Score, score

__all__ = [
    "Ratio",
    "Reading",
    "Recorder",
    "Recording",
    "Score",
    "blind_source",
    "gradient_ratio",
    "read_tokens",
    "score",
    "separate_gradients",
]
