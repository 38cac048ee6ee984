"""The listed real-valued options are those that constructors annotate as such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import pytest

from flwr_splitmix.experiments.cells import as_options
from flwr_splitmix.experiments.option_types import REAL_VALUED
from flwr_splitmix.hiding import NaiveMix, SnD
from flwr_splitmix.hiding.mixguard import MixGuardOptions
from flwr_splitmix.methods import METHODS, own_options, strategy_class
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies import SplitStrategy

HINTS: dict[str, Mapping[str, Any]] = {
    "GaussianNoise": get_type_hints(GaussianNoise),
    "MixGuardOptions": get_type_hints(MixGuardOptions),
    "NaiveMix": get_type_hints(NaiveMix.__init__),
    "SnD": get_type_hints(SnD.__init__),
    "SplitStrategy": get_type_hints(SplitStrategy.__init__),
}
for method in METHODS:
    kind = strategy_class(method.name)
    hints = get_type_hints(kind.__init__)
    HINTS[method.name] = {name: hints[name] for name in own_options(kind)}


def on_a_scale(name: str) -> set[str]:
    return {o for o, hint in HINTS[name].items() if float in (get_args(hint) or (hint,))}


@pytest.mark.parametrize("name", HINTS)
def test_numbers_on_a_scale_are_those_that_are_annotated_float(name: str) -> None:
    assert on_a_scale(name) == HINTS[name].keys() & REAL_VALUED


def test_no_other_option_is_on_a_scale() -> None:
    assert set().union(*map(on_a_scale, HINTS)) == REAL_VALUED


def test_a_whole_number_on_a_scale_is_a_float_and_a_count_is_none() -> None:
    options = dict(as_options({"alpha": 6, "k": 6, "strength": None}))
    assert options == {"alpha": 6.0, "k": 6, "strength": None}
    assert [type(options[name]) for name in ("alpha", "k")] == [float, int]
