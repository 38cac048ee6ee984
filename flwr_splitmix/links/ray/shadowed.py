"""Modules of an app in whose place a process has imported those of another app."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flwr_splitmix.clients import ClientError


def check_own_modules(client_fn: Callable[..., Any]) -> None:
    """Check that `client_fn`, and the modules beside it, belong to the app that is run.

    Ray's workers import from the folder in which the SuperLink was started before they import from
    the app that Flower has unpacked. If that folder has an app of its own, with modules of the same
    names, its clients would be trained.

    Raises
    ------
    ClientError
        If another folder on the import path has other contents under the same name; the message
        names both files and the remedy.
    """
    for imported, other in _shadowed(client_fn):
        raise ClientError(
            f"{imported} was imported, but the app that is run has another {other.name} ({other}): "
            "the SuperLink was started in the folder of another app, whose modules come first. End "
            "that SuperLink, and start it in an empty folder, or give each app a FLWR_HOME and "
            "ports of its own"
        )


def _shadowed(client_fn: Callable[..., Any]) -> Iterator[tuple[Path, Path]]:
    """Yield pairs of a module's file, and another one that comes later on the import path."""
    module = sys.modules.get(getattr(client_fn, "__module__", ""))
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return
    parts = module.__name__.count(".") + Path(file).name.startswith("__init__.")
    folder = Path(file).parents[parts]
    entries = [Path(entry) for entry in sys.path if entry]
    later = entries[entries.index(folder) + 1 :] if folder in entries else []
    apps = [entry for entry in later if _is_app(entry)]
    beside = [
        Path(path)
        for each in list(sys.modules.values())
        if (path := getattr(each, "__file__", None)) and Path(path).is_relative_to(folder)
    ]
    for entry in apps:
        for imported in beside:
            other = entry / imported.relative_to(folder)
            both = other != imported and other.is_file() and imported.is_file()
            if both and imported.read_bytes() != other.read_bytes():
                yield imported, other


def _is_app(folder: Path) -> bool:
    """Return whether a folder is a Flower app, by its pyproject.toml."""
    try:
        described = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    flwr = described.get("tool", {}).get("flwr", {})
    return isinstance(flwr, dict) and "app" in flwr
