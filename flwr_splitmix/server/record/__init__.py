"""The record of a run: its directory, metrics, checkpoints and summary, and resumption."""
