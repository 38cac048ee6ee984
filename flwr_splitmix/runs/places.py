"""The directories of runs on disk, and their order."""

from __future__ import annotations

import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from flwr_splitmix.runs.errors import RunError


def runs_directory(home: str | Path | None) -> Path:
    """Return the directory of all runs: below `home`, else $SPLITMIX_HOME, else ~/.splitmix.

    Raises
    ------
    RunError
        If it begins with the "~" of an unknown user.
    """
    chosen = home or os.environ.get("SPLITMIX_HOME") or "~/.splitmix"
    try:
        return Path(chosen).expanduser() / "runs"
    except RuntimeError as error:
        raise RunError(f"cannot find the folder {str(chosen)!r}: {error}") from error


def check_writable(chosen: str | Path | None, option: str, inside: str = "runs") -> None:
    """Check that files can be written to the folder of runs, and to another one beside it.

    Parameters
    ----------
    chosen
        The home, as in `runs_directory`.
    option
        What names the home if it is given.
    inside
        A folder in the home; it is made.

    Raises
    ------
    RunError
        If nothing can be written there.
    """
    named = os.environ.get("SPLITMIX_HOME")
    key = option if chosen else "$SPLITMIX_HOME" if named else "the default run-dir"
    home = Path(chosen or named or "~/.splitmix")
    try:
        expanded = home = home.expanduser()
        (expanded / inside).mkdir(parents=True, exist_ok=True)
        for folder in {expanded / inside, expanded / "runs"}:
            if folder.exists():
                with tempfile.TemporaryFile(dir=folder):
                    pass
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" of an unknown user
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(
            f"{key} is {str(home)!r}, where nothing can be written ({reason}); choose a writable "
            "folder"
        ) from error


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
