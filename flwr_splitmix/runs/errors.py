"""Errors of a run's directory."""


class RunError(RuntimeError):
    """A run cannot be found, read or written as asked; the message is one sentence for the user."""
