"""The directories of runs on disk: their names, order and creation."""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr_splitmix.files.home import home_folder
from flwr_splitmix.files.writing import write_json
from flwr_splitmix.runs.errors import RunError
from flwr_splitmix.words import printable

_log = logging.getLogger("flwr.splitmix")

LATEST = "latest"
"""Stands for the newest run where an id is asked for."""

_BYTES = 255
"""Most bytes of a folder's name."""

_LONGEST = 200
"""Most characters of a run's name; time and digits are added to it."""


def runs_directory(home: str | Path | None) -> Path:
    """Return the directory of all runs: below `home`, else $SPLITMIX_HOME, else ~/.splitmix.

    Raises
    ------
    RunError
        If it begins with the "~" of an unknown user.
    """
    folder = home_folder(home)
    try:
        return folder.expanduser() / "runs"
    except RuntimeError as error:
        raise RunError(f"cannot find the folder {str(folder)!r}: {error}") from error


def check_writable(chosen: str | Path | None, option: str, inside: str = "runs") -> None:
    """Check that files can be written to the folder of runs, and to another one beside it.

    Parameters
    ----------
    chosen
        The home, as in `runs_directory`.
    option
        The option that names the home, if it is given.
    inside
        A folder in the home; it is made.

    Raises
    ------
    RunError
        If nothing can be written there.
    """
    named = os.environ.get("SPLITMIX_HOME")
    key = option if chosen else "$SPLITMIX_HOME" if named else "the default run-dir"
    home = home_folder(chosen)
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
    """List the runs' directories, oldest first, without those whose names no command takes.

    Raises
    ------
    RunError
        If `runs` exists but cannot be read.
    """
    try:
        ages = {path: _age(path) for path in runs.iterdir()}
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {runs}: {error.strerror}") from error
    # An id's time is in whole seconds; within one, config.json's modification time decides.
    aged = sorted((path.name[:15], age, path) for path, age in ages.items() if age is not None)
    return [path for *_, path in aged if _has_id(path)]


def check_label(label: object) -> None:
    """Raise RunError for a label of a new run that means another one."""
    if label == LATEST:
        raise RunError(f"label is {LATEST!r}, which means the newest run; choose another")


def _has_id(path: Path) -> bool:
    """Return whether a run's folder has a name that commands accept; warn if not."""
    if path.name == LATEST:
        _log.warning(
            "skipped a run: %s: %r stands for the newest run; rename the folder",
            printable(str(path)),
            LATEST,
        )
    return path.name != LATEST


def _no_id(name: str) -> str:
    """Return why a name is not a run's id; "" if it may be one."""
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        return "an id is a name, not a path"
    if len(name.encode("utf-8", "surrogatepass")) > _BYTES:
        return f"an id has at most {_BYTES} bytes"
    return ""


def _age(path: Path) -> int | None:
    """Return when a run's config.json was written, in ns.

    None if it is not a run, was just removed, or, with a warning, is closed to this user.
    """
    try:
        facts = (path / "config.json").stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        if error.errno == errno.EACCES and os.access(path.parent, os.X_OK):
            _log.warning("skipped a run: cannot read %s: %s", printable(str(path)), error.strerror)
            return None
        raise
    return facts.st_mtime_ns if stat.S_ISREG(facts.st_mode) else None


def new_run(name: str, config: Mapping[str, Any], home: str | Path | None) -> Path:
    """Create a run's directory with its config.json.

    Parameters
    ----------
    name
        Part of the directory's name, besides the UTC time and four hex digits.
    config
        Values that JSON has.
    home
        As for `runs_directory`.

    Raises
    ------
    RunError
        If `name` has no ASCII letter or digit, or more than 200 characters, or if the directory
        or the file cannot be written; no directory is left behind.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not slug:
        raise RunError(f"a run's name needs a letter or a digit, not {name!r}")
    if len(slug) > _LONGEST:
        raise RunError(
            f"a run's name has {len(slug)} characters; the most is {_LONGEST}, as it becomes "
            "part of a directory's name"
        )
    runs = runs_directory(home)
    try:
        runs.mkdir(parents=True, exist_ok=True)
        path = _make_exclusively(runs, slug)
        try:
            write_json(path / "config.json", dict(config))
        except BaseException:
            shutil.rmtree(path)
            raise
    except OSError as error:
        raise RunError(
            f"a run cannot be written to {runs}: {error.strerror or error}; free space there, "
            "or choose another run-dir"
        ) from error
    return path


def find_run(run_id: str, home: str | Path | None) -> Path:
    """Return the directory of the run with this id, or of the newest one for "latest".

    Raises
    ------
    RunError
        If there is no such run, it is closed to this user, or `run_id` is a path rather than a
        name, or a name that no folder may have.
    """
    runs = runs_directory(home)
    why = _no_id(run_id)
    if run_id != LATEST and not why:
        try:
            if (runs / run_id / "config.json").is_file():
                return runs / run_id
        except PermissionError as error:
            raise RunError(f"cannot read {runs / run_id}: {error.strerror}") from error
    paths = run_paths(runs)
    for path in paths:
        if printable(path.name) == run_id:  # as it is listed
            return path
    if why:
        raise RunError(f"{run_id!r} is not a run's id: {why}")
    if not paths:
        raise RunError(f"there are no runs in {runs}")
    if run_id != LATEST:
        newest = ", ".join(printable(path.name) for path in reversed(paths[-10:]))
        raise RunError(f"there is no run {run_id!r} in {runs}; the newest are: {newest}")
    return paths[-1]


def _make_exclusively(runs: Path, slug: str) -> Path:
    """Create a new, unique directory named by UTC time, `slug` and four hex digits."""
    while True:
        path = runs / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{slug}-{os.urandom(2).hex()}"
        try:
            path.mkdir()
            return path
        except FileExistsError:
            continue  # try other digits
