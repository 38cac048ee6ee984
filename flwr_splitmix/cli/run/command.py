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
from dataclasses import dataclass
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
    from flwr_splitmix.apps.configuration.project import Kind, Project
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
    as does standard output that accepts no more. The exit status is 0 only if the run completed.
    """
    from flwr_splitmix.apps.checking.ray_cluster import lost_cluster
    from flwr_splitmix.flwr_command import Flwr, FlwrError, config_text

    try:
        connection = read_connection(superlink)
        note(check_environment(connection))
    except SuperLinkError as error:
        fail(str(error))
    texts = run_config or []
    keys = _read_keys(app, texts, run_dir, is_local=connection.local)
    if keys.values.get("resume"):  # a resumed run has its own configuration
        note(lost_cluster())
    else:
        _check_app(app, texts, nodes or _nodes_of(federation_config))
    try:
        flwr = Flwr(superlink)
        option = "run-dir" if run_dir is None else "--run-dir"
        check_writable(keys.values.get("run-dir"), option, _LOGS)
        options = _federation_options(nodes, federation, federation_config)
        words = config_text(keys.changed)
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
        followed, interrupted = _follow(flwr, flower_run, _home(keys.values))
    expects_run = connection.local and keys.kind != "own"
    end_run(flwr, followed, keys.values, interrupted=interrupted, expected=expects_run)


@dataclass(frozen=True)
class RunKeys:
    """The keys of a run.

    Parameters
    ----------
    values
        The whole run configuration.
    changed
        The keys that the user has changed, with their new values.
    kind
        The kind of app that the keys belong to.
    """

    values: dict[str, Any]
    changed: dict[str, Any]
    kind: Kind


def _read_keys(
    app: Path, run_config: list[str], run_dir: Path | None, *, is_local: bool
) -> RunKeys:
    """Return the run's keys, or exit if they are wrong, or the run that they resume refuses them.

    Parameters
    ----------
    is_local
        Whether the ServerApp runs on this machine, which then has the runs.
    """
    from flwr_splitmix.apps.configuration.error import ConfigError
    from flwr_splitmix.apps.configuration.overrides import read_overrides, run_values
    from flwr_splitmix.apps.configuration.project import open_project

    folder = Path.cwd()
    try:
        project = open_project(app)
        values = run_values(project, run_config, folder)
        changed = read_overrides(run_config, folder, project.kind)
        if run_dir is not None:
            chosen = _chosen_run_dir(run_dir, project, run_config, folder)
            changed["run-dir"] = values["run-dir"] = chosen
        keys = RunKeys(values, changed, project.kind)
        if is_local and project.kind != "own" and values.get("resume"):
            _check_resumption(keys)
    except (ConfigError, RunError) as error:
        fail(str(error))
    return keys


def _chosen_run_dir(run_dir: Path, project: Project, run_config: list[str], folder: Path) -> str:
    """Return the value that --run-dir gives the app's key run-dir.

    Raises
    ------
    ConfigError
        If the app has no such key, or --run-config sets it to another folder.
    """
    from flwr_splitmix.apps.configuration.error import ConfigError
    from flwr_splitmix.apps.configuration.overrides import absolute, read_overrides

    if "run-dir" not in project.config:
        raise ConfigError(
            f"--run-dir sets the app's key run-dir, which {project.name} does not have; "
            "leave the option out, or have the app read such a key"
        )
    chosen: str = absolute("run-dir", str(run_dir), folder, project.kind)
    # As a pair, the option may change what a file of keys has, but not another pair.
    written = [text for text in run_config if "=" in text]
    pairs = read_overrides(written, folder, project.kind)
    if "run-dir" in pairs and _real_folder(pairs["run-dir"]) != _real_folder(chosen):
        raise ConfigError(
            f"--run-dir is {chosen!r}, but --run-config has run-dir={pairs['run-dir']!r}; "
            "write one of them"
        )
    return chosen


def _check_resumption(keys: RunKeys) -> None:
    """Check that a run of this machine can be resumed with the keys; note which of them it keeps.

    Raises
    ------
    ConfigError
        If the run is another app's.
    RunError
        If there is no such run.
    """
    from flwr_splitmix.apps.configuration.continuing import (
        check_can_continue,
        note_of_ignored_values,
    )

    resumed = Run.open(str(keys.values["resume"]), home=_home(keys.values))
    check_can_continue(resumed, keys.kind, keys.changed)
    note(note_of_ignored_values(resumed.config, keys.values, keys.changed))


def _check_app(app: Path, run_config: list[str], nodes: int | None) -> None:
    """Print what `splitmix check` finds, and exit if there are problems."""
    report = _check_report(app, run_config, nodes)
    for message in report["problems"][:-1]:
        problem(message)
    if report["problems"]:
        fail(report["problems"][-1])
    for remark in report["remarks"]:
        note(remark)


def _check_report(app: Path, run_config: list[str], nodes: int | None) -> dict[str, Any]:
    """Return the report of `splitmix check`, run in a separate process.

    It loads torch and a model, whose memory is thus free during the run. Its standard
    error is shown at once, such as that a hub does not answer and is asked again.
    """
    number = ["--any-nodes"] if nodes is None else ["--nodes", str(nodes), "--simulated"]
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


def _federation_options(
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


def _real_folder(run_dir: Any) -> str:
    """Return the folder of a value of run-dir, however it is written."""
    return os.path.realpath(os.path.expanduser(home_folder(str(run_dir))))


def _follow(flwr: Flwr, flower_run: int, home: Path) -> tuple[RunFollower, bool]:
    """Show the run's progress to its end; return its follower, and whether it was to be stopped.

    Ctrl-C, SIGTERM and SIGHUP stop it, and so does standard output that accepts no more.
    """
    from flwr_splitmix.cli.run.following import RunFollower, display

    followed = RunFollower(flower_run, home, home / _LOGS / f"{flower_run}.log")
    still_running = f"run {flower_run} may still be running; `flwr stop {flower_run}` ends it"
    writer = None
    try:
        with followed.log.open("wb") as file:
            writer = flwr.follow(flower_run, file)
        with display() as shown:
            interrupted = _follow_to_end(flwr, followed, writer, shown)
    except KeyboardInterrupt:
        fail(still_running, INTERRUPTED)
    except OSError as error:
        fail(f"{error}; {still_running}")
    except Exception:
        _print_problem(still_running)
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
    show_line: Callable[[str], None] = shown.show_line
    started = f"run {followed.flower_run} of Flower has started"
    while True:
        try:
            if started:
                show_line(started)
                started = ""
            follow(followed, writer, shown)
            return interrupted
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            show_line("stopping the run (press Ctrl-C again to quit without waiting)")
        except ClosedError as closed:
            show_line = _print_problem
            if not isinstance(closed.error, BrokenPipeError):
                show_line(f"{closed}; stopping the run")
            if interrupted:  # and so it is being stopped
                continue
            interrupted = True
        except RemovedError as removed:
            show_line(f"{removed}; stopping the run")
        try:
            flwr.stop(followed.flower_run)
        except FlwrError as error:
            show_line(str(error))


def _print_problem(sentence: str) -> None:
    """Print a problem on standard error, unless that accepts no more either."""
    with suppress(OSError):
        problem(sentence)
