"""How the checks of all kinds of apps run: part by part, with errors as problems in a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol

from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.configuration.project import Project
from flwr_splitmix.clients import ClientError
from flwr_splitmix.links import LinkError
from flwr_splitmix.runs import RunError

REJECTED = (ConfigError, ValueError, ClientError, LinkError, RunError)
"""Errors that a run's parts raise for a user's mistake."""

P = ParamSpec("P")


@dataclass(frozen=True)
class Checks:
    """The parts of a run that an app's check examines, and the report of its findings.

    Parameters
    ----------
    project
        The app's folder.
    values
        The whole run configuration.
    report
        Gets the findings.
    setting
        Known values of network and speeds, by the names of `Setting`; None for no advice.
    """

    project: Project
    values: Mapping[str, Any]
    report: Report
    setting: Mapping[str, float] | None = None

    def run(self, part: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Run a part of a check with its arguments, and return whether it passes.

        A user's mistake, or a file that cannot be read, becomes a problem in the report, once even
        if several parts find it.
        """
        try:
            part(*args, **kwargs)
        except (*REJECTED, OSError) as error:
            problem = " ".join(str(error).split())
            if problem not in self.report.problems:
                self.report.problems.append(problem)
            return False
        return True


class AppCheck(Protocol):
    """Check of one kind of app."""

    def __call__(self, checks: Checks) -> None:
        """Look at the app with its run configuration; the report gets the findings."""
