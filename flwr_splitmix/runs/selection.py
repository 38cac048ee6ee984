"""Selection of runs by ids and labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.runs.places import LATEST
from flwr_splitmix.runs.run import Run


def select(names: Sequence[str], home: str | Path | None = None) -> list[Run]:
    """Return the named runs, each once, in the order of the names.

    Parameters
    ----------
    names
        Ids, "latest", or labels; a label that is neither selects all runs that have it, oldest
        first.

    Raises
    ------
    RunError
        If a name is none of these.
    """
    chosen: dict[str, Run] = {}
    for name in names:
        for run in _named(name, home):
            chosen.setdefault(run.id, run)
    return list(chosen.values())


def select_one(name: str, home: str | Path | None = None) -> Run:
    """Return the run with this id, the newest one for "latest", or the only one with this label.

    Raises
    ------
    RunError
        If `name` is none of these, or several runs have this label.
    """
    named = _named(name, home)
    if len(named) > 1:
        newest = ", ".join(run.id for run in reversed(named[-10:]))
        raise RunError(
            f"{len(named)} runs have the label {name!r}; give the id of one, newest first: {newest}"
        )
    return named[0]


def _named(name: str, home: str | Path | None) -> list[Run]:
    """Return the run with this id, the newest one for "latest", or else all with this label."""
    try:
        return [Run.open(name, home=home)]
    except RunError:
        labelled = [run for run in Run.all(home) if run.label == name != LATEST]
        if not labelled:
            raise
        return labelled
