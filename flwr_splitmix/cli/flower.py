"""The flwr commands that a run needs: start it, follow its log, query its status, stop it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO


class FlwrError(RuntimeError):
    """A command of flwr failed; the message is one sentence."""


class Flwr:
    """The `flwr` of this environment, for one SuperLink.

    Parameters
    ----------
    superlink
        The connection's name in flwr's configuration; None for the default.
    """

    def __init__(self, superlink: str | None) -> None:
        beside = Path(sys.executable).with_name("flwr")
        program = str(beside) if beside.exists() else shutil.which("flwr")
        if program is None:
            raise FlwrError("there is no flwr in this environment: pip install flwr")
        self._program = program
        self._superlink = [superlink] if superlink else []
        # Flower starts its programs by name: they must be found in this environment.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self._environment = {**os.environ, "PATH": path, "FLWR_DISABLE_UPDATE_CHECK": "1"}

    def start(self, app: Path, run_config: str, options: Sequence[str]) -> int:
        """Start a run and return its Flower id."""
        chosen = ["--run-config", run_config] if run_config else []
        return int(self._answer("run", str(app), *self._superlink, *options, *chosen)["run-id"])

    def status(self, run_id: int) -> tuple[str, str]:
        """Return (status, details): "running", "finished:completed", "finished:failed", ..."""
        (run,) = self._answer("ls", *self._superlink, "--run-id", str(run_id))["runs"]
        return str(run["status"]), str(run.get("status-details") or "")

    def stop(self, run_id: int) -> None:
        """End a run that is in progress."""
        self._answer("stop", str(run_id), *self._superlink)

    def follow(self, run_id: int, log: BinaryIO) -> subprocess.Popen[bytes]:
        """Start a process that writes the run's log into a file until the run ends."""
        return subprocess.Popen(
            [self._program, "log", str(run_id), *self._superlink, "--stream"],
            env={**self._environment, "PYTHONUNBUFFERED": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            # In its own process group: Ctrl-C is handled by the following command.
            start_new_session=True,
        )

    def _answer(self, *arguments: str) -> Mapping[str, Any]:
        done = subprocess.run(
            [self._program, *arguments, "--format", "json"],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            answer = {}
        if done.returncode or not answer.get("success"):
            said = str(answer.get("error-message") or done.stderr or done.stdout)
            lines = [line.strip(" │╭╮╰╯─") for line in said.splitlines()]
            sentence = " ".join(" ".join(filter(None, lines)).split())
            raise FlwrError(f"flwr {arguments[0]}: {sentence.removeprefix('Error: ')[:500]}")
        return answer


def run_config_text(values: Mapping[str, Any]) -> str:
    """Return keys in the syntax of `flwr run --run-config`.

    Raises
    ------
    FlwrError
        If a text has both kinds of quotes, which Flower's syntax cannot express.
    """
    return " ".join(f"{key}={_written(key, value)}" for key, value in values.items())


def _written(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    if "'" not in value:
        return f"'{value}'"
    if '"' in value or "\\" in value:
        raise FlwrError(f"{key} is {value!r}, which --run-config cannot say: it mixes quotes")
    return f'"{value}"'
