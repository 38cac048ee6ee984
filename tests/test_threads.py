"""Threads of this library's processes sleep while they wait for each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flwr_splitmix.threads import POLICY

ROOT = Path(__file__).parents[1]
APPS = [
    ROOT / "apps" / app / f"{part}_app.py"
    for app in ("vision", "language")
    for part in ("server", "client")
]
NOTHING = dict.fromkeys(POLICY)

UP_TO_TORCH = """
import flwr.clientapp, flwr.serverapp

class Reached(BaseException):
    pass

class Torch:
    @staticmethod
    def find_spec(name, *_):
        if name == "torch":
            raise Reached

sys.meta_path.insert(0, Torch)
sys.path[0] = {folder!r}
try:
    import {module}
except Reached:
    pass
else:
    raise AssertionError("nothing imports torch, or Flower did")
"""
"""Imports an app as Flower does, with modules of its own in the process already, up to torch."""


def policy_after(program: str, **environment: str) -> dict[str, str | None]:
    """Return what a new process that runs a program has in its environment."""
    others = {name: value for name, value in os.environ.items() if name not in POLICY}
    report = f"print(json.dumps({{name: os.environ.get(name) for name in {[*POLICY]}}}))"
    process = subprocess.run(
        [sys.executable, "-c", f"import json, os, sys\n{program}\n{report}"],
        env={**others, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    policy: dict[str, str | None] = json.loads(process.stdout.splitlines()[-1])
    return policy


def test_the_policy_is_set_by_a_package_that_loads_no_torch() -> None:
    program = "import flwr_splitmix.cli, benchmarks; assert 'torch' not in sys.modules"
    assert policy_after(program) == POLICY


@pytest.mark.parametrize("name", POLICY)
def test_what_the_user_has_set_stays(name: str) -> None:
    assert policy_after("import flwr_splitmix", **{name: "1000"}) == {**NOTHING, name: "1000"}


def test_too_late_changes_nothing() -> None:
    """A variable that this process does not follow would mislead a reader."""
    assert policy_after("import torch, flwr_splitmix") == NOTHING


@pytest.mark.parametrize("file", APPS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_apps_import_the_package_before_torch(file: Path) -> None:
    program = UP_TO_TORCH.format(folder=str(file.parent), module=file.stem)
    assert policy_after(program) == POLICY
