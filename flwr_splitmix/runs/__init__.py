"""What a run leaves on disk: configuration, metrics, checkpoints, summary. Needs no torch."""

from flwr_splitmix.runs.run import Row, Run, RunError

__all__ = ["Row", "Run", "RunError"]
