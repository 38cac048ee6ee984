"""What a run has recorded of what its server sees, for attacks: how much, and its removal."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.runs.run import Run

_FACTS = "recording.json"


@dataclass(frozen=True)
class RunRecording:
    """A recording on disk, below the run's directory.

    Parameters
    ----------
    path
        Its directory, which holds the results of attacks too.
    steps, nbytes
        Recorded steps, and bytes of everything.
    """

    path: Path
    steps: int
    nbytes: int


def attacks_dir(run: Run) -> Path:
    """Return where a run's recording, and what attacks made of it, are kept."""
    return run.path / "attacks"


def trace_dir(run: Run) -> Path:
    """Return where the recorded steps are."""
    return attacks_dir(run) / "trace"


def recording_of(run: Run) -> RunRecording | None:
    """Return what there is; None if the run has recorded nothing."""
    path = attacks_dir(run)
    if not path.exists():
        return None
    files = [file for file in path.rglob("*") if file.is_file()]
    steps = sum(file.parent.name == "trace" and file.name.startswith("step-") for file in files)
    return RunRecording(path, steps, sum(file.stat().st_size for file in files))


def write_facts(run: Run, facts: dict[str, Any]) -> None:
    """Keep what is needed to tell afterwards which examples a batch held; no data."""
    from flwr_splitmix.storage import write_json  # loads torch

    attacks_dir(run).mkdir(mode=0o700, exist_ok=True)
    write_json(attacks_dir(run) / _FACTS, facts)


def read_facts(run: Run) -> dict[str, Any]:
    """Return what `write_facts` wrote.

    Raises
    ------
    RunError
        If the run has no recording; it says how to record.
    """
    file = attacks_dir(run) / _FACTS
    if not file.exists():
        raise RunError(
            f"run {run.id} has no recording, so there is nothing to attack: start it with "
            '--run-config "record-attacks=true"'
        )
    try:
        facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {file}: {error}") from error
    return facts


def forget(run: Run) -> RunRecording | None:
    """Remove a run's recording and all that attacks made of it; return what there was."""
    there = recording_of(run)
    if there is not None:
        shutil.rmtree(there.path)
    return there
