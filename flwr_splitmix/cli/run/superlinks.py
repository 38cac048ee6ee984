"""The SuperLink that a run is sent to, and the environment it belongs to."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOCAL = (":local:", ":local-in-memory:")
"""Addresses of a SuperLink that flwr itself starts on this machine when needed."""

PORTS = {
    "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": 39091,
    "FLWR_LOCAL_CONTROL_API_PORT": 39093,
}
"""Default ports of such a SuperLink, by the environment variables that override them."""

PROGRAM = "flower-superlink"
_LOOPBACK_HOSTS = {"localhost", "127.0.0.1", "::1"}


class SuperLinkError(RuntimeError):
    """A run cannot be sent: flwr's settings are wrong, or another environment has the SuperLink."""


@dataclass(frozen=True)
class Connection:
    """How flwr reaches a SuperLink, according to its configuration.

    Parameters
    ----------
    name
        Name in the configuration; None for its default.
    local
        Whether flwr starts the SuperLink itself if it is not running.
    ports
        Ports on this machine; empty if it is on another one.
    """

    name: str | None
    local: bool
    ports: tuple[int, ...]


@dataclass(frozen=True)
class Listener:
    """A process that listens on a port, with the environment of a SuperLink if it is one.

    Parameters
    ----------
    pid
        None if the process belongs to another user, or cannot be inspected.
    programs
        The folder of its environment's programs; None if unknown.
    folder
        Its working directory, which runs begin in, whether it is still there or not; None if
        unknown.
    """

    port: int
    pid: int | None
    programs: Path | None
    folder: Path | None = None


def read_connection(name: str | None) -> Connection:
    """Read a connection from flwr's configuration, which may not exist yet.

    A name that is not there is left to flwr, which reports it.

    Raises
    ------
    SuperLinkError
        If the configuration cannot be read, what it says of the connection has another type, or an
        environment variable of `PORTS` is not a port.
    """
    file = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "config.toml"
    connections = _table(_flwr_configuration(file), "superlink", file)
    chosen_name = name or str(connections.get("default", ""))
    if chosen_name == "default":  # the name of the entry that names one
        return Connection(name, False, ())
    chosen = _table(connections, chosen_name, file, "superlink.")
    address = str(chosen.get("address", ""))
    if address in LOCAL or (not address and "options" in chosen):
        return Connection(name, True, tuple(map(_local_port, PORTS)))
    host, _, port = address.removeprefix("http://").rpartition(":")
    is_local = host.strip("[]") in _LOOPBACK_HOSTS and _is_port(port)
    return Connection(name, False, (int(port),) if is_local else ())


def _flwr_configuration(file: Path) -> dict[str, Any]:
    """Return flwr's configuration, or, if there is none, what is needed of flwr's default."""
    local = {"superlink": {"default": "local", "local": {"address": LOCAL[0]}}}
    try:
        return local | tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return local
    except OSError as error:
        raise SuperLinkError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SuperLinkError(
            f"{file} is not a TOML file: {error}; repair it, or remove it, and flwr writes a new "
            "one"
        ) from error


def _table(parent: dict[str, Any], key: str, file: Path, above: str = "") -> dict[str, Any]:
    """Return a table of flwr's configuration; empty if there is none."""
    table = parent.get(key, {})
    if not isinstance(table, dict):
        raise SuperLinkError(
            f"{file} has {above}{key} = {table!r:.80}; it must be a table, [{above}{key}]"
        )
    return table


def _local_port(variable: str) -> int:
    text = os.environ.get(variable) or str(PORTS[variable])
    if not _is_port(text):
        raise SuperLinkError(
            f"the environment variable {variable} is {text!r:.80}; it must be a port, 1 to 65535, "
            f"or not be set, for {PORTS[variable]}"
        )
    return int(text)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= 65535


def check_environment(connection: Connection) -> str:
    """Check whether a SuperLink is already running, in which environment, and in which folder.

    Returns
    -------
    A remark for the user; "" if there is none.

    Raises
    ------
    SuperLinkError
        If it belongs to another environment, whose packages the run would use, or its working
        directory has been removed, in which no run can begin.
    """
    for port in connection.ports:
        listener = find_listener(port)
        if listener is None:
            continue
        if listener.programs is None:
            return (
                f"it could not be determined which environment the SuperLink on port {port} "
                "belongs to; the run uses that environment's packages"
            )
        programs = programs_here()
        if listener.programs != programs:
            raise SuperLinkError(_foreign_message(connection, listener, programs))
        if listener.folder is not None and not listener.folder.exists():
            raise SuperLinkError(_removed_folder_message(connection, listener, listener.folder))
    return ""


def programs_here() -> Path:
    """Return the folder of this environment's programs."""
    return Path(sys.executable).parent.resolve()


def _foreign_message(connection: Connection, listener: Listener, programs: Path) -> str:
    theirs = "unknown" if listener.programs is None else listener.programs.parent
    message = (
        f"the SuperLink on port {listener.port} (process {listener.pid}) belongs to another "
        f"environment, {theirs}, and would run the app with that one's packages, not with those of "
        f"{programs.parent}; end it (kill {listener.pid})"
    )
    if not connection.local:
        return f"{message}, or name another SuperLink"
    return f"{message}, or give this environment ports of its own: " + " ".join(
        f"{name}={port + 100}" for name, port in PORTS.items()
    )


def _removed_folder_message(connection: Connection, listener: Listener, folder: Path) -> str:
    end = f"end it (kill {listener.pid})"
    remedy = f"{end}, and flwr starts another one" if connection.local else f"{end} and start it"
    return (
        f"the SuperLink on port {listener.port} (process {listener.pid}) was started in {folder}, "
        f"which is no longer there, so that no run could begin; {remedy} where you are now"
    )


def find_listener(port: int) -> Listener | None:
    """Return the listener on a port of this machine's loopback; None if there is none."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        process = _process_of(port)
        if process is None:
            return Listener(port, None, None)
        return Listener(port, process.pid, _programs_of(process), _folder_of(process))
    return None


def _process_of(port: int) -> Any:
    """Return the psutil process that listens on a port, if psutil is installed and sees it."""
    try:
        import psutil
    except ImportError:
        return None
    with contextlib.suppress(psutil.Error, OSError):
        for line in psutil.net_connections(kind="tcp"):
            if line.status == psutil.CONN_LISTEN and line.laddr.port == port and line.pid:
                return psutil.Process(line.pid)
    return None


def _programs_of(process: Any) -> Path | None:
    """Return the folder of programs of a SuperLink's environment."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for word in process.cmdline():
            # It is a script, so its full path follows the interpreter.
            if Path(word).name == PROGRAM and Path(word).is_absolute():
                return Path(word).parent.resolve()
        for word in process.cmdline()[:1]:
            if Path(word).is_absolute():
                return Path(word).parent.resolve()
    return None


def _folder_of(process: Any) -> Path | None:
    """Return a process's working directory; of one that is removed, where it was."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        return Path(process.cwd().removesuffix(" (deleted)"))
    return None
