"""The Ray cluster that simulations on this machine join, if RAY_ADDRESS or a file names one."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from flwr_splitmix.words import one_line

_TIMEOUT_SECONDS = 2.0  # for an answer


def lost_cluster() -> str:
    """Return a remark if the cluster that simulations here would join does not answer, else "".

    `RAY_ADDRESS` names it, or a file to which `ray start` writes its address, and which stays if
    the cluster ends without `ray stop`.
    """
    ray_address = os.environ.get("RAY_ADDRESS", "")
    if ray_address not in ("", "auto"):  # Ray then does not read the file
        if _answers(ray_address.removeprefix("ray://")):
            return ""
        return (
            f"RAY_ADDRESS names a Ray cluster at {one_line(ray_address)}, where nothing answers, "
            "and a simulation that a SuperLink starts with it would wait for it without end: unset "
            "it, or start the cluster"
        )
    file = _ray_folder() / "ray_current_cluster"
    try:
        address = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
    if _answers(address):
        return ""
    return (
        f"{file} names a Ray cluster at {one_line(address)}, where nothing answers, and a "
        "simulation on this machine would wait for it without end: remove the file, as `ray "
        "stop` does, or start the cluster again"
    )


def _answers(address: str) -> bool:
    """Return whether the address answers, or has no port, which Ray says."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return True
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT_SECONDS).close()
    except (OSError, OverflowError, ValueError):
        return False
    return True


def _ray_folder() -> Path:
    """Return Ray's folder, which Ray finds in this way."""
    elsewhere = os.environ.get("TMPDIR", "/tmp") if sys.platform == "linux" else "/tmp"
    return Path(os.environ.get("RAY_TMPDIR", elsewhere)) / "ray"
