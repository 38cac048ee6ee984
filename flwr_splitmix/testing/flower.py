"""A SuperLink of one's own: run a Flower app as `flwr run` does, and leave nothing behind.

`python -m flwr_splitmix.testing.flower APP --nodes 10 --run-config "..."` starts a SuperLink on a
free port with its own FLWR_HOME, runs the app, shows its log, and ends every process it started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "local",  # not whatever cluster another program has started here
}
_NAME = "splitmix"


class FlowerError(RuntimeError):
    """The SuperLink did not start, or a command of flwr failed."""


class LocalFlower:
    """A simulation SuperLink on a free port of this machine, as a context manager.

    Parameters
    ----------
    environment
        Further environment variables of the SuperLink and of all that it starts.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="smx-"))
        self._bin = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            **_QUIET,
            "FLWR_HOME": str(self.home),
            "RAY_TMPDIR": str(self.home),
            # Flower starts its other programs by name: they must be this environment's.
            "PATH": f"{self._bin}{os.pathsep}{os.environ.get('PATH', '')}",
            **(environment or {}),
        }
        self._superlink: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalFlower:
        port = _free_port()
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_NAME}"\n\n[superlink.{_NAME}]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        empty = self.home / "cwd"
        empty.mkdir()
        superlink = str(self._bin / "flower-superlink")
        with (self.home / "superlink.log").open("wb") as log:
            self._superlink = subprocess.Popen(
                [
                    superlink, "--insecure", "--simulation",
                    "--database", str(self.home / "state.db"), *_addresses(port),
                ],
                cwd=empty,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            self._wait_until_up(port)
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

    def _wait_until_up(self, port: int) -> None:
        assert self._superlink is not None
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._superlink.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 2):
                return
            time.sleep(0.1)
        raise FlowerError(
            "the SuperLink did not start: " + (self.home / "superlink.log").read_text()[-2000:]
        )

    def stop(self) -> None:
        """End the SuperLink, the run in progress, and Ray; by process id, nothing else."""
        import psutil

        if self._superlink is not None:
            try:
                started = psutil.Process(self._superlink.pid).children(recursive=True)
            except psutil.NoSuchProcess:  # it never came up
                started = []
            self._superlink.terminate()
            for process in started:
                _signal(process, signal.SIGTERM)
            _, alive = psutil.wait_procs(started, timeout=10)
            for process in alive:
                _signal(process, signal.SIGKILL)
            try:
                self._superlink.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._superlink.kill()
                self._superlink.wait()
            self._superlink = None
        shutil.rmtree(self.home, ignore_errors=True)

    def flwr(self, *arguments: str) -> str:
        """Run a flwr command and return what it printed.

        Raises
        ------
        FlowerError
            With its output, if it failed.
        """
        done = subprocess.run(
            [str(self._bin / "flwr"), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise FlowerError(f"flwr {' '.join(arguments)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def submit(
        self, app: Path, run_config: str = "", nodes: int = 10, cpus: int = 1, **federation: Any
    ) -> int:
        """Start a run of `nodes` virtual SuperNodes; returns Flower's run id."""
        settings = {"num-supernodes": nodes, "client-resources-num-cpus": cpus}
        settings |= {name.replace("_", "-"): value for name, value in federation.items()}
        options = ["--federation-config", " ".join(f"{k}={v}" for k, v in settings.items())]
        if run_config:
            options += ["--run-config", run_config]
        printed = self.flwr("run", str(app), _NAME, "--format", "json", *options)
        answer = json.loads(printed)
        if not answer.get("success"):
            raise FlowerError(f"flwr run: {answer.get('error-message', printed)}")
        return int(answer["run-id"])

    def status(self, run_id: int) -> tuple[str, str]:
        """Return (status, details): "running", "finished:completed", "finished:failed", ..."""
        answer = json.loads(self.flwr("ls", _NAME, "--run-id", str(run_id), "--format", "json"))
        run = answer["runs"][0]
        return str(run["status"]), str(run.get("status-details", ""))

    def log(self, run_id: int) -> str:
        """Return the run's log so far."""
        return self.flwr("log", str(run_id), _NAME, "--show")

    def wait(self, run_id: int, timeout: float = 600.0) -> tuple[str, str]:
        """Wait until a run has finished; returns its status and details.

        Raises
        ------
        FlowerError
            With the log, if it does not finish in `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            # Following the log costs nothing; asking again and again would start a process that
            # imports flwr each time, and take the cores from the run.
            self._follow(run_id, subprocess.DEVNULL, max(deadline - time.monotonic(), 0.1))
            status = self.status(run_id)
            if status[0].startswith("finished"):
                return status
            if time.monotonic() > deadline:
                raise FlowerError(
                    f"run {run_id} is {status} after {timeout:g} s: {self.log(run_id)}"
                )
            time.sleep(1.0)

    def stream(self, run_id: int) -> None:
        """Show a run's log on this terminal until it ends."""
        self._follow(run_id, None, None)

    def _follow(self, run_id: int, stdout: int | None, timeout: float | None) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [str(self._bin / "flwr"), "log", str(run_id), _NAME, "--stream"],
                env=self.environment,
                stdout=stdout,
                stderr=None if stdout is None else subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )


def _addresses(port: int) -> list[str]:
    """Return the options that bind a SuperLink: one port since Flower 1.35, several before."""
    major, minor = map(int, version("flwr").split(".")[:2])
    if (major, minor) >= (1, 35):
        return ["--host", "127.0.0.1", "--port", str(port)]
    control = f"--control-api-address=127.0.0.1:{port}"
    return [control, f"--serverappio-api-address=127.0.0.1:{_free_port()}"]


def _signal(process: Any, number: int) -> None:
    import psutil

    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """Run an app on a SuperLink of its own; exit 0 only if the run completed."""
    parser = argparse.ArgumentParser(description="Run a Flower app on a SuperLink of its own.")
    parser.add_argument("app", type=Path)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--cpus", type=int, default=1, help="CPUs of a virtual client")
    parser.add_argument("--run-config", default="")
    parser.add_argument("--run-dir", type=Path, help="sets the app's run-dir key")
    options = parser.parse_args()
    run_config = options.run_config.strip()
    if options.run_dir:
        run_config += f" run-dir='{options.run_dir.resolve()}'"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with LocalFlower() as flower:
        run_id = flower.submit(options.app, run_config, options.nodes, options.cpus)
        flower.stream(run_id)
        status, details = flower.wait(run_id, timeout=60)
    print(f"flwr run: {status} {details}".rstrip())
    return 0 if status == "finished:completed" else 1


if __name__ == "__main__":
    sys.exit(main())
