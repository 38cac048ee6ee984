"""Check of an app before it runs: its keys, data, model and cut, without starting Flower."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr_splitmix.apps.checking.parts import AppCheck, Checks
from flwr_splitmix.apps.checking.ray_cluster import lost_cluster
from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.configuration.continuing import (
    check_can_continue,
    continued,
    note_of_ignored_values,
)
from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.configuration.overrides import read_overrides, run_values
from flwr_splitmix.apps.configuration.project import Kind, open_project
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.runs.flower_run import ABOUT_RESUMING
from flwr_splitmix.runs.places import check_label, runs_directory

FLOWERS_DEFAULT = 2
"""Flower's default number of SuperNodes in a simulation."""


def check_app(
    folder: Path,
    run_config: Sequence[str] = (),
    *,
    here: Path,
    nodes: int | None = None,
    any_nodes: bool = False,
    simulated: bool = False,
    setting: Mapping[str, float] | None = None,
) -> Report:
    """Check an app with a run configuration, and advise on its cuts.

    Parameters
    ----------
    folder
        The app's folder.
    run_config
        Texts given as `--run-config`.
    here
        Working directory of the command.
    nodes
        Number of SuperNodes; None for Flower's default.
    any_nodes
        Whether to report nothing that depends on this number.
    simulated
        Whether the run is known to be a simulation.
    setting
        Known values of network and speeds, by the names of `Setting`; the rest is measured. None
        for no advice.
    """
    report = Report(
        folder.name, nodes or FLOWERS_DEFAULT, nodes_known=not any_nodes, simulated=simulated
    )
    try:
        project = open_project(folder)
        report.app = project.name
        values = run_values(project, run_config, here)
    except ConfigError as error:
        report.problems.append(str(error))
        return report
    if project.dependencies:
        report.remarks.append(
            f"pyproject.toml has dependencies ({', '.join(project.dependencies):.100}), which "
            "Flower would install for each run on this machine, in an environment of their own "
            "that comes before this one (for flwr, all that it needs); install here what the app "
            "needs, next to flwr-splitmix, and remove these dependencies"
        )
    if remark := lost_cluster():
        report.remarks.append(remark)
    if project.kind != "own" and values.get("resume"):
        try:
            overrides = read_overrides(run_config, here, project.kind)
            values = _of_resumed(project.kind, values, overrides, report.remarks)
        except (ConfigError, RunError) as error:
            report.problems.append(f"resume is {values['resume']!r}, but {error}")
            values = {**values, "resume": ""}
    elif project.kind != "own":
        # With any_nodes, `splitmix run` has looked itself.
        _check_new_run(values, report, runs_here=not any_nodes)
    with _collected(report.remarks):
        _check_of(project.kind)(Checks(project, values, report, setting))
    if nodes is None and "clients" in report.facts:
        report.facts["clients"] += " (Flower's default number of them; --nodes sets another)"
    return report


def _check_new_run(values: Mapping[str, Any], report: Report, *, runs_here: bool) -> None:
    """Check a new run's label and, if its ServerApp `runs_here`, its directory."""
    try:
        check_label(values.get("label"))
    except RunError as error:
        report.problems.append(f"run-config: {error}")
    run_dir = values.get("run-dir") or None
    if runs_here and isinstance(run_dir, str | None):  # the app's own check tells of others
        _check_run_directory(run_dir, report)


def _of_resumed(
    kind: Kind, values: Mapping[str, Any], overrides: Mapping[str, Any], remarks: list[str]
) -> dict[str, Any]:
    """Return the configuration that a resumed run would have; ignored keys become remarks.

    Raises
    ------
    ConfigError, RunError
        If there is no such run, it is another app's, it is in progress, or it has finished.
    """
    resumed = Run.open(str(values["resume"]), home=values.get("run-dir"))
    check_can_continue(resumed, kind, overrides)
    if remark := note_of_ignored_values(resumed.config, values, overrides):
        remarks.append(remark)
    with _collected(remarks):
        config = continued({**values, **resumed.config}, overrides, resumed.id)
    return {**config, **{key: values[key] for key in ABOUT_RESUMING if key in values}}


def _check_of(kind: Kind) -> AppCheck:
    """Return the check of a kind of app; only its libraries are imported."""
    if kind == "vision":
        from flwr_splitmix.apps.vision import check as vision

        return vision.check
    if kind == "language":
        from flwr_splitmix.apps.language import check as language

        return language.check
    from flwr_splitmix.apps.checking import own

    return own.check


@contextmanager
def _collected(remarks: list[str]) -> Iterator[None]:
    """Collect warnings of the run's parts as remarks, instead of writing them to standard error."""
    log = logging.getLogger("flwr.splitmix")
    handler = _Collecting(remarks)
    propagated, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagated


class _Collecting(logging.Handler):
    """Handler that appends each warning to a list."""

    def __init__(self, remarks: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._remarks = remarks

    def emit(self, record: logging.LogRecord) -> None:
        self._remarks.append(record.getMessage())


def _check_run_directory(chosen: str | None, report: Report) -> None:
    """Remark if this machine's directory of runs cannot be written: the ServerApp's may be."""
    try:
        runs = runs_directory(chosen)
    except RunError as error:
        report.remarks.append(f"run-dir is {chosen!r}, but {error}")
        return
    existing = next((place for place in (runs, *runs.parents) if os.path.exists(place)), runs)
    if not (os.path.isdir(existing) and os.access(existing, os.W_OK)):
        report.remarks.append(
            f"runs would be written to {runs}, which is not possible on this machine; if the "
            "ServerApp runs here, choose another run-dir"
        )
