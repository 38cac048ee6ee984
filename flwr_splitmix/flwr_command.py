"""The `flwr` command line: start a run, follow its log, query its status, stop it."""

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

    A command that fails raises `FlwrError`.

    Parameters
    ----------
    superlink
        The connection's name in flwr's configuration; None for the default.
    environment
        Environment variables of the commands; None for those of this process.

    Raises
    ------
    FlwrError
        If this environment has no flwr.
    """

    def __init__(self, superlink: str | None, environment: Mapping[str, str] | None = None) -> None:
        beside = Path(sys.executable).with_name("flwr")
        program = str(beside) if beside.exists() else shutil.which("flwr")
        if program is None:
            raise FlwrError("there is no flwr in this environment: pip install flwr")
        self._program = program
        self._superlink = [superlink] if superlink else []
        self._environment = {
            **with_programs(os.environ if environment is None else environment),
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    def start(self, app: Path, run_config: str, options: Sequence[str]) -> int:
        """Start a run and return its Flower id."""
        chosen = ["--run-config", run_config] if run_config.strip() else []
        return int(self.answer("run", str(app), *self._superlink, *options, *chosen)["run-id"])

    def status(self, run_id: int) -> tuple[str, str]:
        """Return (status, details): "running", "finished:completed", "finished:failed", ..."""
        (run,) = self.answer("ls", *self._superlink, "--run-id", str(run_id))["runs"]
        return str(run["status"]), str(run.get("status-details") or "")

    def stop(self, run_id: int) -> None:
        """End a run that is in progress."""
        self.answer("stop", str(run_id), *self._superlink)

    def log(self, run_id: int) -> str:
        """Return the run's log so far."""
        return self._printed("log", str(run_id), *self._superlink, "--show")

    def follow(self, run_id: int, log: BinaryIO | int | None) -> subprocess.Popen[bytes]:
        """Start a process that writes the run's log until the run ends.

        Parameters
        ----------
        log
            An open file, `subprocess.DEVNULL`, or None for this process's standard output.
        """
        return subprocess.Popen(
            [self._program, "log", str(run_id), *self._superlink, "--stream"],
            env={**self._environment, "PYTHONUNBUFFERED": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            # In its own process group: the follower handles Ctrl-C.
            start_new_session=True,
        )

    def answer(self, *arguments: str) -> Mapping[str, Any]:
        """Return what a command answers in JSON."""
        printed = self._printed(*arguments, "--format", "json")
        answer = _read(printed)
        if not answer.get("success"):
            raise _error(arguments, answer.get("error-message") or printed)
        return answer

    def _printed(self, *arguments: str) -> str:
        process = subprocess.run(
            [self._program, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            message = _read(process.stdout).get("error-message") or process.stderr or process.stdout
            raise _error(arguments, message)
        return process.stdout


def _read(printed: str) -> dict[str, Any]:
    try:
        answer = json.loads(printed)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _error(arguments: Sequence[str], message: object) -> FlwrError:
    lines = [line.strip(" │╭╮╰╯─") for line in str(message).splitlines()]
    sentence = " ".join(" ".join(filter(None, lines)).split())
    return FlwrError(f"flwr {arguments[0]}: {sentence.removeprefix('Error: ')[:500]}")


def with_programs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables with this environment's programs first on the PATH.

    Flower starts its other programs by name.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    return {**environment, "PATH": path}


def config_text(values: Mapping[str, Any]) -> str:
    """Return values as `--run-config`, `--federation-config` and `--node-config` expect them.

    Parameters
    ----------
    values
        By key: texts, whole numbers, floats, True or False.

    Raises
    ------
    FlwrError
        If a text is not Unicode, such as the name of a file in another encoding.
    """
    return " ".join(f"{key}={_written(key, value)}" for key, value in values.items())


def _written(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return str(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise FlwrError(f"{key} is {value!r}, which is not Unicode text") from None
    if "'" not in value and value.isprintable():
        return f"'{value}'"
    # TOML's escapes are JSON's, except this one; and flwr ends a text at a quote, even after a \.
    escaped = json.dumps(value, ensure_ascii=False)[1:-1].replace("\x7f", r"\u007f")
    return '"' + escaped.replace('\\"', r"\u0022") + '"'
