"""A run of a strategy: its entries, its rounds, and what they ask of a strategy."""

from flwr_splitmix.server.rounds.loop import RoundLoop

__all__ = ["RoundLoop"]
