"""A run's record of its data in its directory, compared when the run is resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from flwr_splitmix.runs import Run, RunError

INPUTS = "inputs.json"
"""The file's name in a run's directory."""

_MAX_NAMED = 5


def check_unchanged(
    run: Run, dataset: str, recorded: Mapping[str, Any], present: Mapping[str, Any]
) -> None:
    """Check that the data are those that the run began with.

    Parameters
    ----------
    dataset
        The key, for messages.
    recorded, present
        What is recorded of the run's data, and the same of the data now: "classes", and other
        values that are plain.

    Raises
    ------
    RunError
        If they differ, such as in the order of the classes, which numbers the labels.
    """
    for name, was in recorded.items():
        if was == present[name]:
            continue
        differ = f"{name} is now {present[name]}, and was {was}"
        if name == "classes":
            place, new_classes, old_classes = _difference(was, present[name])
            differ = (
                f"the classes from number {place} on are now {new_classes}, and were {old_classes}"
            )
        raise RunError(
            f"run {run.id} began with other data: dataset is {dataset!r}, of which {differ}; "
            "restore the data as they were, or begin a new run (without resume)"
        )


def _difference(recorded: Sequence[str], present: Sequence[str]) -> tuple[int, str, str]:
    """Return the first place at which two lists differ, and what each has from there on."""
    pairs = enumerate(zip_longest(recorded, present))
    place = next(place for place, (old, new) in pairs if old != new)

    def listed(names: Sequence[str]) -> str:
        more = ", ..." if len(names) > place + _MAX_NAMED else ""
        return ", ".join(map(repr, names[place : place + _MAX_NAMED])) + more or "none"

    return place, listed(present), listed(recorded)
