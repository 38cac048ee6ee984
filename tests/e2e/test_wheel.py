"""The wheel, installed as a user installs it: the README's commands, in a checkout and outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest

from flwr_splitmix import Run
from flwr_splitmix.sandbox.processes import end_processes_of, processes_of
from flwr_splitmix.sandbox.superlink import QUIET, free_port, toml
from flwr_splitmix.threads import POLICY
from tests.e2e.flower_run import TINY

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SHORT = {**TINY, "strategy": "CutMixSFL", "num-server-rounds": 1, "num-hosts": 1}
PROGRAM = """#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what of the repository the build and the README's commands need."""
    copy = tmp_path_factory.mktemp("wheel") / "checkout"
    copy.mkdir()
    for folder in ("flwr_splitmix", "apps"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    (copy / "strategies").symlink_to((ROOT / "strategies").readlink())
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    pip("wheel", "--no-build-isolation", f"--wheel-dir={checkout.parent}", str(checkout))
    (built,) = checkout.parent.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path) -> Path:
    """Install the wheel into an environment of its own; returns its folder of programs.

    Everything else is this environment's, but Flower's programs run with the new one's Python.
    """
    folder = wheel.parent / "environment"
    venv.create(folder, symlinks=True)
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    outer = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    Path(paths["purelib"], "outer.pth").write_text("\n".join(sorted(outer)) + "\n")
    programs = Path(paths["scripts"])
    pip(f"--python={programs / 'python'}", "install", "--no-index", str(wheel))
    for entry in distribution("flwr").entry_points.select(group="console_scripts"):
        program = programs / entry.name
        text = PROGRAM.format(python=programs / "python", module=entry.module, function=entry.attr)
        program.write_text(text)
        program.chmod(0o755)
    return programs


def pip(*arguments: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
            *arguments,
            "--no-deps",
        ],
        env=without_this_checkout(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def without_this_checkout() -> dict[str, str]:
    """Return this process's environment without what names its modules and its settings."""
    left_out = {"PYTHONPATH", *POLICY}
    return {name: value for name, value in os.environ.items() if name not in left_out}


@pytest.fixture
def environment(
    programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Return what a user's shell has; ends the SuperLink that `flwr run` leaves behind."""
    home = tmp_path_factory.mktemp("flwr")
    yield {
        **without_this_checkout(),
        **QUIET,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
    }
    end_processes_of(home)
    assert processes_of(home) == []


def test_the_wheel_holds_the_whole_package_and_nothing_else(checkout: Path, wheel: Path) -> None:
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    package = checkout / "flwr_splitmix"
    modules = {str(file.relative_to(checkout)) for file in package.rglob("*.py")}
    images = package / "data" / "images" / "fashion_mnist_small"
    data = {str(file.relative_to(checkout)) for file in images.iterdir()}
    assert "flwr_splitmix/strategies/split.py" in modules
    assert len(data) >= 5
    assert names == modules | data | {"flwr_splitmix/py.typed"}


@pytest.mark.parametrize("where", ["in the checkout", "in an empty folder"])
def test_flwr_run_trains_with_the_installed_package(
    where: str, checkout: Path, programs: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """In the checkout its own `flwr_splitmix` comes before the installed one, and must do."""
    app, folder = checkout / "apps" / "vision", tmp_path / "empty"
    folder.mkdir()
    if where == "in the checkout":
        app, folder = app.relative_to(checkout), checkout
    done = subprocess.run(
        [
            programs / "flwr", "run", app, "--stream",
            "--federation-config", "num-supernodes=2 client-resources-num-cpus=1",
            "--run-config", toml({**SHORT, "run-dir": str(tmp_path / "runs")}),
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    (run,) = Run.list(tmp_path / "runs")
    assert run.status == "finished", done.stdout + done.stderr
    shown = subprocess.run(
        [programs / "splitmix", "show", "latest", "--run-dir", tmp_path / "runs"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "CutMixSFL" in shown.stdout
    assert "1 of 1" in shown.stdout
