"""The state of files on disk: the key of caches that hold what was read from them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path


def state_of(*places: Path) -> str:
    """Return a digest of files, and of all files below folders: paths, sizes, times of change.

    Links are followed. A file that is not there, such as a broken link, is left out:
    reading it reports that.
    """
    digest = hashlib.sha256()
    for place in places:
        digest.update(repr(os.path.realpath(place)).encode())
        for path in _files(place):
            with contextlib.suppress(OSError):
                status = os.stat(path)
                digest.update(repr((path, status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest()


def _files(place: Path) -> Iterator[str]:
    """Yield a file, or all files below a folder, in an order that is always the same."""
    if not place.is_dir():
        yield str(place)
        return
    visited: set[str] = set()
    for folder, folders, files in os.walk(place, followlinks=True):
        real = os.path.realpath(folder)
        folders[:] = [] if real in visited else sorted(folders)  # links may lead in a circle
        visited.add(real)
        yield from (os.path.join(folder, name) for name in sorted(files))
