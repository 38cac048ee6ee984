"""The directories of runs on disk, and their order."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from flwr_splitmix.runs.errors import RunError


def runs_directory(home: str | Path | None) -> Path:
    """Return the directory of all runs: below `home`, else $SPLITMIX_HOME, else ~/.splitmix."""
    chosen = home or os.environ.get("SPLITMIX_HOME") or "~/.splitmix"
    return Path(chosen).expanduser() / "runs"


def run_paths(runs: Path) -> list[Path]:
    """List the runs' directories, oldest first.

    Raises
    ------
    RunError
        If `runs` exists but cannot be read.
    """

    def age(path: Path) -> tuple[str, int]:
        # An id's time is in whole seconds; within one, config.json's modification time decides.
        return path.name[:15], (path / "config.json").stat().st_mtime_ns

    try:
        return sorted((p for p in runs.iterdir() if (p / "config.json").is_file()), key=age)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {runs}: {error.strerror}") from error


def make_exclusively(runs: Path, slug: str) -> Path:
    """Create a new, unique directory named by UTC time, `slug` and four hex digits."""
    while True:
        path = runs / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{slug}-{os.urandom(2).hex()}"
        try:
            path.mkdir()
            return path
        except FileExistsError:
            continue  # try other digits
