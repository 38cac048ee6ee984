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
from flwr_splitmix.cli.apps.new import FILES, Template
from flwr_splitmix.flwr_command import config_text
from flwr_splitmix.sandbox.processes import end_processes_of, processes_of
from flwr_splitmix.sandbox.superlink import QUIET, free_port
from flwr_splitmix.threads import POLICY
from tests.e2e.flower_run import TINY

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
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
    for folder in ("flwr_splitmix", "apps", "examples"):
        ignored = shutil.ignore_patterns("__pycache__")
        # The apps that `splitmix new` writes are links to those folders.
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored, symlinks=True)
    for file in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
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
    process = subprocess.run(
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
    assert process.returncode == 0, process.stderr


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
    templates = {
        f"flwr_splitmix/templates/{kind.value}/{name}" for kind in Template for name in FILES
    }
    images = package / "data" / "images" / "fashion_mnist_small"
    data = {str(file.relative_to(checkout)) for file in images.iterdir()}
    assert "flwr_splitmix/strategies/split.py" in modules
    assert len(data) >= 5
    assert names == modules | data | templates | {"flwr_splitmix/py.typed"}


def flwr_run(
    app: Path, folder: Path, programs: Path, environment: dict[str, str], home: Path, *options: str
) -> Run:
    """Run an app to its end in a folder, as the README says; returns what it leaves behind."""
    *federation, values = options
    process = subprocess.run(
        [programs / "flwr", "run", app, "--stream", *federation, "--run-config", values],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    (run,) = Run.all(home)
    assert run.status == "finished", process.stdout + process.stderr
    return run


def test_a_run_with_flowers_own_defaults_in_the_checkout(
    checkout: Path, programs: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """The checkout's own `flwr_splitmix` comes before the installed one, and must do."""
    values = {**TINY, "strategy": "PSL", "evaluation": "auto", "run-dir": str(tmp_path)}
    app = Path("apps", "vision")
    run = flwr_run(app, checkout, programs, environment, tmp_path, config_text(values))
    # 2 SuperNodes, each of which reserves 2 CPUs.
    assert run.summary is not None
    assert run.summary["clients"] == 2
    assert run.summary["uplink_bytes"] == run.summary["uplink_bytes_psl"]
    assert run.summary["evaluation"] == "benchmark"
    shown = subprocess.run(
        [programs / "splitmix", "show", "latest", "--run-dir", tmp_path],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "2 of 2" in shown.stdout


def test_five_of_a_hundred_virtual_clients_take_part_in_a_round_in_an_empty_folder(
    checkout: Path, programs: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    empty, home = tmp_path / "empty", tmp_path / "runs"
    empty.mkdir()
    values = {**TINY, "strategy": "CutMixSL", "fraction-train": 0.05, "run-dir": str(home)}
    federation = "num-supernodes=100 client-resources-num-cpus=1"
    options = ("--federation-config", federation, config_text(values))
    run = flwr_run(checkout / "apps" / "vision", empty, programs, environment, home, *options)
    assert [(row["clients_alive"], row["clients_failed"]) for row in run.rows] == [(5, 0), (5, 0)]
    states = {int(folder.name): folder for folder in run.clients_dir.iterdir()}
    newest = [max(file.name for file in folder.iterdir()) for folder in states.values()]
    assert newest.count("round-000002.safetensors") == 5
    assert states.keys() <= set(range(100))
    assert run.summary is not None
    assert run.summary["clients"] == len(states) > 5
