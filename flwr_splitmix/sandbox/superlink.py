"""A private SuperLink process: starting it, waiting for its runs, and ending it."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flwr_splitmix.extras import needed_for
from flwr_splitmix.flwr_command import Flwr, config_text, with_programs
from flwr_splitmix.sandbox.processes import end_processes_of, processes_of

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "local",  # not a cluster started here by another program
}
NAME = "splitmix"

START_SECONDS = 240.0
"""Seconds for the SuperLink to listen: on a machine that does much else it imports for long."""


class SandboxError(RuntimeError):
    """The SuperLink or a SuperNode did not start, or a run did not end in time."""


class SuperLink(ABC):
    """A SuperLink on a free port of this machine, as a context manager.

    Parameters
    ----------
    environment
        Further environment variables of the SuperLink and of all that it starts.

    Attributes
    ----------
    home
        FLWR_HOME: directory of everything that the SuperLink writes. It identifies its processes.
    port
        Port where it listens; 0 before it starts.
    flwr
        The `flwr` commands for it.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        with needed_for("a private SuperLink"):  # or its processes could not be ended
            import psutil  # noqa: F401
        self.home = Path(tempfile.mkdtemp(prefix="smx-"))
        self.port = 0
        self._bin = Path(sys.executable).parent
        self.environment = {
            **with_programs(os.environ),
            **QUIET,
            "FLWR_HOME": str(self.home),
            "RAY_TMPDIR": str(self.home),
            **(environment or {}),
        }
        self.flwr = Flwr(NAME, self.environment)
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def _start(self) -> None:
        """Start the SuperLink, and the processes that belong to it."""

    def _start_superlink(self, options: Sequence[str], connection: str) -> None:
        """Start the SuperLink and wait until it listens.

        Parameters
        ----------
        options
            Options of flower-superlink, besides address and database.
        connection
            A line of TOML on how flwr connects, besides the address.

        Raises
        ------
        SandboxError
            If the SuperLink ends, or does not listen within `START_SECONDS`.
        """
        self.port = free_port()
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
            f'address = "127.0.0.1:{self.port}"\n{connection}\n'
        )
        superlink = self._launch(
            "superlink",
            "flower-superlink",
            *options,
            "--database", str(self.home / "state.db"),
            *_addresses(self.port),
        )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and superlink.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.1)
        raise SandboxError(
            "the SuperLink did not start: " + (self.home / "superlink.log").read_text()[-2000:]
        )

    def _launch(
        self, name: str, program: str, *options: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start one of Flower's programs in an empty directory; its output goes to NAME.log."""
        # The working directory comes first on the import path of all that it starts.
        empty = self.home / "cwd"
        empty.mkdir(exist_ok=True)
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self._bin / program), *options],
                cwd=empty,
                env={**self.environment, **(environment or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        return process

    def processes(self) -> list[Any]:
        """Return all running processes (psutil's) that were started for this SuperLink."""
        return processes_of(self.home)

    def stop(self) -> None:
        """End the SuperLink and all processes that it started, and remove its files."""
        end_processes_of(self.home)
        for child in self._started:
            child.wait()
        self._started.clear()
        shutil.rmtree(self.home, ignore_errors=True)

    def status(self, run_id: int) -> tuple[str, str]:
        """Return (status, details); status is "running", "finished:completed" or the like."""
        return self.flwr.status(run_id)

    def log(self, run_id: int) -> str:
        """Return the run's log so far."""
        return self.flwr.log(run_id)

    def wait(self, run_id: int, timeout: float = 600.0) -> tuple[str, str]:
        """Wait until a run has finished; return its status and details.

        Raises
        ------
        SandboxError
            If the run does not finish within `timeout` seconds; the message contains the log.
        """
        deadline = time.monotonic() + timeout
        while True:
            # Following the log costs little; polling the status would start a process that imports
            # flwr each time, and take cores from the run.
            self._follow(run_id, subprocess.DEVNULL, max(deadline - time.monotonic(), 0.1))
            status = self.status(run_id)
            if status[0].startswith("finished"):
                return status
            if time.monotonic() > deadline:
                raise SandboxError(
                    f"run {run_id} is {status} after {timeout:g} s: {self.log(run_id)}"
                )
            time.sleep(1.0)

    def stream(self, run_id: int) -> None:
        """Show a run's log on this terminal until it ends."""
        self._follow(run_id, None, None)

    def show(self, run_id: int) -> int:
        """Show a run's log and its final status; return 0 only if it completed."""
        self.stream(run_id)
        status, details = self.wait(run_id, timeout=60)
        print(f"flwr run: {status} {details}".rstrip())
        return 0 if status == "finished:completed" else 1

    def _follow(self, run_id: int, log: int | None, timeout: float | None) -> None:
        writer = self.flwr.follow(run_id, log)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                writer.wait(timeout)
        finally:
            writer.kill()
            writer.wait()


def _addresses(port: int) -> list[str]:
    """Return the options that bind a SuperLink: one port since Flower 1.35, several before."""
    if one_port():
        return ["--host", "127.0.0.1", "--port", str(port)]
    control = f"--control-api-address=127.0.0.1:{port}"
    return [control, f"--serverappio-api-address=127.0.0.1:{free_port()}"]


def one_port() -> bool:
    """Return whether a SuperLink of the installed Flower uses one port for everything."""
    major, minor = map(int, version("flwr").split(".")[:2])
    return (major, minor) >= (1, 35)


_FIRST_PORT = 20_000 + 64 * (os.getpid() % 199)
_PORTS = cycle(range(_FIRST_PORT, _FIRST_PORT + 64))
"""Ports below the range that the kernel gives to connections; each process has 64 of its own."""


def free_port() -> int:
    """Return a port of the loopback interface that is free now.

    Until it is bound, the kernel gives it neither to a connection nor to a bind of port 0.
    """
    for port in islice(_PORTS, 64):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("64 ports in a row are taken on the loopback interface")


def app_parser(description: str, nodes: int) -> argparse.ArgumentParser:
    """Return a parser for the command lines that run an app on their own SuperLink."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("app", type=Path)
    parser.add_argument("--nodes", type=int, default=nodes)
    parser.add_argument("--run-config", default="")
    parser.add_argument("--run-dir", type=Path, help="sets the app's run-dir key")
    return parser


def chosen_run_config(options: argparse.Namespace) -> str:
    """Return the run configuration of a command line, with its run directory."""
    text = str(options.run_config).strip()
    if options.run_dir is None:
        return text
    return f"{text} {config_text({'run-dir': str(options.run_dir.resolve())})}".lstrip()


def end_as_if_asked(*_: object) -> None:
    """Handle SIGTERM by exiting, so that context managers end what they have started."""
    sys.exit(143)
