"""The id of a run, which distinguishes the runs in a node's files."""

from __future__ import annotations


def run_id(run: str) -> str:
    """Return the id of a run, which may be followed by a colon and what its configuration is.

    The server can change the configuration within the run.
    """
    return run.partition(":")[0]
