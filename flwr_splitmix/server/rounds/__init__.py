"""A run of a strategy: its entries, its state, its rounds, and what they ask of a strategy."""

from flwr_splitmix.server.rounds.loop import RoundLoop
from flwr_splitmix.server.rounds.state import RunState
from flwr_splitmix.server.rounds.training_loop import TrainingLoop

__all__ = ["RoundLoop", "RunState", "TrainingLoop"]
