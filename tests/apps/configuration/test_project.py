"""The folder of an app as `splitmix` reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flwr_splitmix.apps.configuration.error import ConfigError
from flwr_splitmix.apps.configuration.project import kind_of_run, open_project
from tests.apps.app_config import APPS, app_run_config


def test_a_runs_configuration_tells_its_app() -> None:
    """The strategy does not: both apps have those of the U shape."""
    changed = {"strategy": "USplitFL"}
    assert kind_of_run(app_run_config("vision", changed)) == "vision"
    assert kind_of_run(app_run_config("language", changed)) == "language"
    assert kind_of_run(changed) == "own"


def test_a_pyproject_with_a_key_of_very_many_parts_is_told(tmp_path: Path) -> None:
    shutil.copytree(APPS / "vision", tmp_path / "app")
    with (tmp_path / "app" / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n[tool.other]\n" + "a." * 5000 + "a = 1\n")
    with pytest.raises(ConfigError, match="cannot be read: it is nested too deeply"):
        open_project(tmp_path / "app")


@pytest.mark.parametrize(
    ("named", "strict", "installed"),
    [
        (["flwr[simulation]>=1.32", "torch==2.8.0"], True, None),
        (["flwr", "Flwr >=1.32", "flwr;python_version>'3'", "numpy"], True, ["numpy"]),
        (["flwr", "flwr-splitmix", "flwr_datasets>=0.6", "flwrs"], False, None),
    ],
)
def test_flower_installs_what_flower_itself_needs(
    named: list[str], strict: bool, installed: list[str] | None, tmp_path: Path
) -> None:
    """`flwr` is not free: Flower installs 52 packages for it, with extras 60."""
    project = shutil.copytree(APPS.parent / "examples/other_project", tmp_path / "own")
    file = project / "pyproject.toml"
    described = file.read_text(encoding="utf-8")
    listed = f'version = "0.1.0", dependencies = {json.dumps(named)}'
    if strict:
        listed += ', license = { file = "LICENSE" }'
        needed = 'fab-format-version = 1\nflwr-version-target = "1.32.0"\npublisher ='
        described = described.replace("publisher =", needed)
    file.write_text(described.replace('version = "0.1.0"', listed), encoding="utf-8")
    assert open_project(project).dependencies == (named if installed is None else installed)
