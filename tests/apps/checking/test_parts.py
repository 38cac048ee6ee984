"""The parts of an app's check run one by one, whatever kind of app it is of."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest

from flwr_splitmix.apps.checking import own
from flwr_splitmix.apps.checking.parts import REJECTED, Checks
from flwr_splitmix.apps.checking.report import Report
from flwr_splitmix.apps.configuration.project import Project
from flwr_splitmix.apps.language import check as language
from flwr_splitmix.apps.vision import check as vision


def checks() -> Checks:
    return Checks(Project(Path(), "x", "own", {}, {}), {}, Report("x", 2))


@pytest.mark.parametrize("kind", [*REJECTED, OSError])
def test_a_users_mistake_is_one_line_of_the_report_and_the_next_part_runs(
    kind: type[Exception],
) -> None:
    part_checks = checks()
    calls: list[str] = []

    def wrong() -> None:
        raise kind("two\n  lines")

    assert not part_checks.run(wrong)
    assert part_checks.run(calls.append, "next")
    assert (part_checks.report.problems, calls) == (["two lines"], ["next"])


def test_a_fault_of_the_check_itself_is_not_the_users() -> None:
    def fails() -> None:
        raise KeyError("missing")

    with pytest.raises(KeyError):
        checks().run(fails)


def test_the_checks_of_all_kinds_of_apps_take_the_same() -> None:
    for check in (own.check, language.check, vision.check):
        assert list(signature(check).parameters) == ["checks"]
