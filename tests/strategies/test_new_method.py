"""A further method is one file in `strategies/`, one in `mixers/` and one entry in `METHODS`."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

MIXER = '''"""Turned: every client turns its patches by some places before it sends them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from flwr_splitmix.mixers.mixer import Mixer
from flwr_splitmix.mixers.plan import Plan, SmashedShape, each_alone
from flwr_splitmix.mixers.full_share import FullShare


@dataclass(frozen=True, kw_only=True)
class TurnedShare(FullShare):
    """Everything, turned by `places`."""

    name: ClassVar[str] = "turned"
    places: int

    def upload(self, smashed: Tensor) -> tuple[Tensor, Tensor]:
        """Upload the patches, turned."""
        turned = smashed.roll(self.places, dims=1)
        return turned, turned


class Turned(Mixer):
    """Every client is a group of its own and turns its patches."""

    def plan(
        self,
        members: Sequence[int],
        shape: SmashedShape,
        rng: np.random.Generator,
        order_rng: np.random.Generator | None = None,
    ) -> Plan:
        """Draw each client's places."""
        return each_alone(shape, ((c, TurnedShare(places=int(rng.integers(9)))) for c in members))
'''

STRATEGY = '''"""TurnedSL and TurnedSFL."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from flwr_splitmix.mixers.turned import Turned
from flwr_splitmix.server.options import SplitOptions
from flwr_splitmix.strategies.split import SplitStrategy


class TurnedSL(SplitStrategy):
    """Split learning on turned patches."""

    def __init__(
        self, upper: nn.Module, *, alpha: float | None = 6.0, **options: Unpack[SplitOptions]
    ) -> None:
        super().__init__(upper, mixer=Turned(), **options)


class TurnedSFL(TurnedSL):
    """TurnedSL whose lower segments are averaged."""

    averages = True
'''

ENTRY = (
    '    Method(name="TurnedSL", twin="TurnedSFL", module="turned_sl", mixer="Turned", '
    'at_cut="turns", up="turned patches", protects="nothing"),\n'
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of the package to which the method was added."""
    home = tmp_path_factory.mktemp("with_a_new_method")
    package = home / "flwr_splitmix"
    shutil.copytree(
        ROOT / "flwr_splitmix",
        package,
        copy_function=os.symlink,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (package / "mixers" / "turned.py").write_text(MIXER, encoding="utf-8")
    (package / "strategies" / "turned_sl.py").write_text(STRATEGY, encoding="utf-8")
    catalogue = package / "methods" / "__init__.py"
    before, end, after = catalogue.read_text(encoding="utf-8").partition("\n)  # fmt: skip\n")
    assert end
    catalogue.unlink()  # a link to the one of this tree
    catalogue.write_text(f"{before}\n{ENTRY}{end[1:]}{after}", encoding="utf-8")
    return home


@pytest.fixture(scope="module")
def uses(home: Path) -> dict[str, Any]:
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.strategies.uses_of_a_method", "TurnedSL", str(elsewhere)],
        cwd=elsewhere,  # Python looks there first
        env={**os.environ, "PYTHONPATH": f"{home}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    uses: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return uses


def test_it_can_be_had_with_averaging_and_without(uses: dict[str, Any], home: Path) -> None:
    assert Path(uses["package"]).is_relative_to(home)
    assert uses["losses"].keys() == {"TurnedSL", "TurnedSFL"}
    assert all(math.isfinite(loss) for loss in uses["losses"].values())


def test_the_app_runs_it(uses: dict[str, Any]) -> None:
    assert uses["app"] == {"strategy": "TurnedSL", "steps": 1}


def test_an_experiment_runs_it(uses: dict[str, Any]) -> None:
    assert uses["experiment"] == {"exit": 0, "strategy": "TurnedSL", "status": "finished"}


def test_the_laws_are_run_over_it(uses: dict[str, Any]) -> None:
    """Not over its twin, which differs in averaging alone."""
    assert "TurnedSL" in uses["laws"]
    assert "TurnedSFL" not in uses["laws"]


def test_the_pages_tables_have_a_row_of_it(uses: dict[str, Any]) -> None:
    assert uses["rows"] == [
        "| `TurnedSL`, `TurnedSFL` | turns | turned patches | nothing |",
        "| `TurnedSL`, `TurnedSFL` | turned patches | `alpha` |",
    ]
