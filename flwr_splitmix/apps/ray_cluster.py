"""The Ray cluster that simulations on this machine join, if a file of Ray names one."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from flwr_splitmix.words import one_line

_SECONDS = 2.0  # for an answer


def lost_cluster() -> str:
    """Return a remark if the cluster that simulations here would join does not answer, else "".

    `ray start` writes its address to a file, which stays if the cluster ends without `ray stop`.
    """
    if os.environ.get("RAY_ADDRESS") not in (None, "", "auto"):
        return ""  # Ray then does not read the file
    file = _ray_folder() / "ray_current_cluster"
    try:
        address = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():  # Ray says so
        return ""
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS).close()
    except (OSError, OverflowError, ValueError):
        return (
            f"{file} names a Ray cluster at {one_line(address)}, where nothing answers, and a "
            "simulation on this machine would wait for it without end: remove the file, as `ray "
            "stop` does, or start the cluster again"
        )
    return ""


def _ray_folder() -> Path:
    """Return Ray's folder, which Ray finds in this way."""
    elsewhere = os.environ.get("TMPDIR", "/tmp") if sys.platform == "linux" else "/tmp"
    return Path(os.environ.get("RAY_TMPDIR", elsewhere)) / "ray"
