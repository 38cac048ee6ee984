"""`splitmix run`: checks an app, starts it, follows it to its end, and prints a summary."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flwr_splitmix.cli.apps.check import MAX_NODES, AppFolder, RunConfig
from flwr_splitmix.cli.run.ending import INTERRUPTED, end_run
from flwr_splitmix.cli.run.superlinks import SuperLinkError, check_environment, read_connection
from flwr_splitmix.cli.terminal import (
    fail,
    note,
    problem,
    run_directory,
    terminated_as_interrupted,
)
from flwr_splitmix.files.home import home_folder
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.places import check_writable

if TYPE_CHECKING:
    from flwr_splitmix.cli.run.following import Display, RunFollower
    from flwr_splitmix.flwr_command import Flwr

_LOGS = "flower-logs"
"""The folder of the logs of runs that have no directory yet."""

_SPLITMIX = "from flwr_splitmix.cli import app; app(prog_name='splitmix')"


def run(
    app: AppFolder,
    superlink: Annotated[
        str | None,
        typer.Argument(
            help="Name of a SuperLink in Flower's configuration; if omitted, the one set as "
            "default there."
        ),
    ] = None,
    run_config: RunConfig = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_NODES, help="Virtual SuperNodes of a simulation, one CPU each."
        ),
    ] = None,
    federation: Annotated[
        str | None, typer.Option(help="A federation of the SuperLink: @account/name.")
    ] = None,
    federation_config: Annotated[
        str | None,
        typer.Option(help="As for flwr run, e.g. 'client-resources-num-gpus=0.5'."),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir", metavar="DIR", parser=run_directory, help="Sets the app's key run-dir."
        ),
    ] = None,
) -> None:
    """Run an app with flwr, show its progress, and print its summary.

    Keys and data are checked before Flower starts anything. Flower's log is kept in the run's
    directory. Ctrl-C, SIGTERM and SIGHUP (a terminal that is closed; not under nohup) stop the run,
    as does standard output that takes no more. The exit status is 0 only if the run completed.
    """
    from flwr_splitmix.flwr_command import Flwr, FlwrError, config_text

    try:
        connection = read_connection(superlink)
        note(check_environment(connection))
    except SuperLinkError as error:
        fail(str(error))
    values, changed, kind = _checked(
        app, run_config or [], run_dir, nodes, federation_config, is_local=connection.local
    )
    try:
        flwr = Flwr(superlink)
        option = "run-dir" if run_dir is None else "--run-dir"
        check_writable(values.get("run-dir"), option, _LOGS)
        options = _federation(nodes, federation, federation_config)
        words = config_text(changed)
    except (FlwrError, RunError) as error:
        fail(str(error))
    with terminated_as_interrupted(signal.SIGHUP):
        try:
            flower_run = flwr.start(app.resolve(), words, options)
        except FlwrError as error:
            fail(str(error))
        except KeyboardInterrupt:
            fail(
                "interrupted while the run was handed over, so it may run on: see `flwr ls`, and "
                "end it with `flwr stop`",
                130,
            )
        followed, interrupted = _follow(flwr, flower_run, _home(values))
    expects_run = connection.local and kind != "own"
    end_run(flwr, followed, values, interrupted=interrupted, expected=expects_run)


def _checked(
    app: Path,
    run_config: list[str],
    run_dir: Path | None,
    nodes: int | None,
    federation_config: str | None,
    *,
    is_local: bool,
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return the whole run configuration, the changed keys and the app's kind, or exit.

    Parameters
    ----------
    is_local
        Whether the ServerApp runs on this machine, which then has the runs.
    """
    from flwr_splitmix.apps.checking.ray_cluster import lost_cluster
    from flwr_splitmix.apps.configuration.continuing import check_goes_on, remark_on_kept
    from flwr_splitmix.apps.configuration.error import ConfigError
    from flwr_splitmix.apps.configuration.overrides import absolute, read_overrides, run_values
    from flwr_splitmix.apps.configuration.project import open_project

    folder = Path.cwd()
    try:
        project = open_project(app)
        values = run_values(project, run_config, folder)
        changed = read_overrides(run_config, folder, project.kind)
        if run_dir is not None:
            if "run-dir" not in project.config:
                raise ConfigError(
                    f"--run-dir sets the app's key run-dir, which {project.name} does not have; "
                    "leave the option out, or have the app read such a key"
                )
            chosen = absolute("run-dir", str(run_dir), folder, project.kind)
            # As a pair, the option may change what a file of keys has, but not another pair.
            written = [text for text in run_config if "=" in text]
            pairs = read_overrides(written, folder, project.kind)
            if "run-dir" in pairs and _real(pairs["run-dir"]) != _real(chosen):
                raise ConfigError(
                    f"--run-dir is {chosen!r}, but --run-config has run-dir={pairs['run-dir']!r}; "
                    "write one of them"
                )
            changed["run-dir"] = values["run-dir"] = chosen
        if is_local and project.kind != "own" and values.get("resume"):
            resumed = Run.open(str(values["resume"]), home=_home(values))
            check_goes_on(resumed, changed)
            note(remark_on_kept(resumed.config, values, changed))
    except (ConfigError, RunError) as error:
        fail(str(error))
    if values.get("resume"):  # a resumed run has its own configuration
        note(lost_cluster())
        return values, changed, project.kind
    report = _check(app, run_config, nodes or _nodes_of(federation_config))
    for message in report["problems"][:-1]:
        problem(message)
    if report["problems"]:
        fail(report["problems"][-1])
    for remark in report["remarks"]:
        note(remark)
    return values, changed, project.kind


def _check(app: Path, run_config: list[str], nodes: int | None) -> dict[str, Any]:
    """Return what `splitmix check` finds, run in a separate process.

    It loads torch and a model, whose memory is thus free during the run. What it writes to standard
    error is shown at once, such as that a hub does not answer and is asked again.
    """
    number = ["--any-nodes"] if nodes is None else ["--nodes", str(nodes)]
    keys = [word for text in run_config for word in ("--run-config", text)]
    process = subprocess.run(
        [sys.executable, "-c", _SPLITMIX, "check", str(app), "--no-cuts", "--format", "json",
         *number, *keys],
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    try:
        report: dict[str, Any] = json.loads(process.stdout)
    except ValueError:
        fail(f"splitmix check {app} failed with exit status {process.returncode}")
    return report


def _nodes_of(federation_config: str | None) -> int | None:
    match = re.search(r"\bnum-supernodes=(\d+)", federation_config or "")
    return int(match[1]) if match else None


def _federation(
    nodes: int | None, federation: str | None, federation_config: str | None
) -> list[str]:
    settings = (federation_config or "").split()
    if nodes is not None:
        number = _nodes_of(federation_config)
        if number not in (None, nodes):
            raise RunError(
                f"--nodes is {nodes}, but --federation-config has num-supernodes={number}; write "
                "one of them"
            )
        settings = [s for s in settings if not s.startswith("num-supernodes=")]
        settings.append(f"num-supernodes={nodes}")
        if not any(s.startswith("client-resources-num-cpus=") for s in settings):
            settings.append("client-resources-num-cpus=1")
    return [
        *(["--federation", federation] if federation else []),
        *(["--federation-config", " ".join(settings)] if settings else []),
    ]


def _home(values: dict[str, Any]) -> Path:
    return home_folder(str(values.get("run-dir") or "")).expanduser()


def _real(run_dir: Any) -> str:
    """Return the folder of a value of run-dir, however it is written."""
    return os.path.realpath(os.path.expanduser(home_folder(str(run_dir))))


def _follow(flwr: Flwr, flower_run: int, home: Path) -> tuple[RunFollower, bool]:
    """Show the run's progress to its end; return its facts, and whether it was to be stopped.

    Ctrl-C, SIGTERM and SIGHUP stop it, and standard output that takes no more.
    """
    from flwr_splitmix.cli.run.following import RunFollower, display

    followed = RunFollower(flower_run, home, home / _LOGS / f"{flower_run}.log")
    writer = None
    try:
        with followed.log.open("wb") as file:
            writer = flwr.follow(flower_run, file)
        with display() as shown:
            interrupted = _follow_to_end(flwr, followed, writer, shown)
    except KeyboardInterrupt:
        fail(f"run {flower_run} may go on; `flwr stop {flower_run}` ends it", INTERRUPTED)
    except OSError as error:
        fail(f"{error}; run {flower_run} may go on; `flwr stop {flower_run}` ends it")
    except Exception:
        _tell(f"run {flower_run} may go on; `flwr stop {flower_run}` ends it")
        raise
    finally:
        if writer is not None:
            if writer.poll() is None:
                writer.terminate()
            writer.wait()
    return followed, interrupted


def _follow_to_end(
    flwr: Flwr, followed: RunFollower, writer: subprocess.Popen[bytes], shown: Display
) -> bool:
    """Follow the run until its log ends, stop it if asked to, and return whether it was."""
    from flwr_splitmix.cli.run.following import ClosedError, RemovedError, follow
    from flwr_splitmix.flwr_command import FlwrError

    interrupted = False
    say: Callable[[str], None] = shown.say
    started = f"run {followed.flower_run} of Flower has started"
    while True:
        try:
            if started:
                say(started)
                started = ""
            follow(followed, writer, shown)
            return interrupted
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            say("stopping the run (Ctrl-C once more leaves it to itself)")
        except ClosedError as closed:
            say = _tell
            if not isinstance(closed.error, BrokenPipeError):
                say(f"{closed}; stopping the run")
            if interrupted:  # and so it is being stopped
                continue
            interrupted = True
        except RemovedError as removed:
            say(f"{removed}; stopping the run")
        try:
            flwr.stop(followed.flower_run)
        except FlwrError as error:
            say(str(error))


def _tell(sentence: str) -> None:
    """Say on standard error what is wrong, unless that takes no more either."""
    with suppress(OSError):
        problem(sentence)
