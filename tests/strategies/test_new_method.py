"""A further method is one file in `strategies/`, one in `mixers/` and one entry in `METHODS`."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.strategies.added_method import Copy

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
def uses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    copy = Copy(tmp_path_factory.mktemp("with_a_new_method"))
    copy.add("mixers/turned.py", MIXER)
    copy.add("strategies/turned_sl.py", STRATEGY)
    copy.insert("methods/__init__.py", ENTRY, before=')  # fmt: skip\n"""All methods')
    return copy.uses("uses_of_a_method", "TurnedSL")


def test_it_can_be_had_with_averaging_and_without(uses: dict[str, Any]) -> None:
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
