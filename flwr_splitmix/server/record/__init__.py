"""The record of a run: its directory, metrics, checkpoints and summary, and how a run goes on."""
