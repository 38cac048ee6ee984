"""The recording of a run's server's view, for attacks: its size, facts and removal."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr_splitmix.files.writing import write_json
from flwr_splitmix.runs.damage import read_object, unreadable
from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.runs.run import Run

_FACTS = "recording.json"


@dataclass(frozen=True)
class RunRecording:
    """A recording on disk, below the run's directory.

    Parameters
    ----------
    path
        Its directory, which also holds the results of attacks.
    steps, nbytes
        Number of recorded steps, and bytes of all files.
    """

    path: Path
    steps: int
    nbytes: int


def attacks_dir(run: Run) -> Path:
    """Return the directory of a run's recording and of its attacks' results."""
    return run.path / "attacks"


def results_dir(run: Run) -> Path:
    """Return the directory of the results of a run's attacks."""
    return attacks_dir(run) / "results"


def trace_dir(run: Run) -> Path:
    """Return the directory of the recorded steps."""
    return attacks_dir(run) / "trace"


def recording_of(run: Run) -> RunRecording | None:
    """Return a run's recording; None if there is none."""
    path = attacks_dir(run)
    if not path.exists():
        return None
    files = [file for file in path.rglob("*") if file.is_file()]
    steps = sum(file.parent.name == "trace" and file.name.startswith("step-") for file in files)
    return RunRecording(path, steps, sum(file.stat().st_size for file in files))


def write_facts(run: Run, facts: dict[str, Any]) -> None:
    """Save the facts needed to find out later the examples of a batch; they contain no data."""
    attacks_dir(run).mkdir(mode=0o700, exist_ok=True)
    write_json(attacks_dir(run) / _FACTS, facts, private=True)


def read_facts(run: Run) -> dict[str, Any]:
    """Return the facts that `write_facts` wrote.

    Raises
    ------
    RunError
        If the run has no recording (the message states how to record), or it cannot be read.
    """
    file = attacks_dir(run) / _FACTS
    if not file.exists():
        raise RunError(
            f"run {run.id} has no recording, so there is nothing to attack: start it with "
            '--run-config "record-attacks=true"'
        )
    facts = read_object(file)
    clients = facts.get("clients")
    if not isinstance(clients, int) or isinstance(clients, bool) or clients < 1:
        raise unreadable(file, f"clients is {clients!r:.80}, which is not a number of clients")
    return facts


def forget(run: Run) -> RunRecording | None:
    """Remove a run's recording and its attacks' results; return the recording, or None.

    Raises
    ------
    RunError
        If it cannot be removed, or is a link: then the recording is elsewhere.
    """
    path = attacks_dir(run)
    if path.is_symlink():
        raise RunError(
            f"{path} is a link to {path.readlink()}, so nothing was removed: what was recorded is "
            "still there; remove that, and the link"
        )
    recording = recording_of(run)
    if recording is not None and not path.is_dir():
        raise RunError(
            f"{path} is a file, so nothing was removed: it is not a recording; remove it"
        )
    if recording is not None:
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise RunError(
                f"the recording could not be removed whole: {error.filename}: {error.strerror}; "
                "remove it yourself"
            ) from error
    return recording
