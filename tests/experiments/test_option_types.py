"""Options read from the constructors' source equal those of the imported constructors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import pytest

from flwr_splitmix.experiments.option_types import scale_options
from flwr_splitmix.hiding.mixguard import MixGuardOptions
from flwr_splitmix.methods import METHODS, own_options, strategy_class
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies import SplitStrategy

HINTS: dict[str, Mapping[str, Any]] = {
    "GaussianNoise": get_type_hints(GaussianNoise),
    "MixGuardOptions": get_type_hints(MixGuardOptions),
    "SplitStrategy": get_type_hints(SplitStrategy.__init__),
}
for method in METHODS:
    kind = strategy_class(method.name)
    hints = get_type_hints(kind.__init__)
    HINTS[method.name] = {name: hints[name] for name in own_options(kind)}


@pytest.mark.parametrize("name", HINTS)
def test_numbers_on_a_scale_are_those_that_are_annotated_float(name: str) -> None:
    floats = {o for o, hint in HINTS[name].items() if float in (get_args(hint) or (hint,))}
    assert floats == HINTS[name].keys() & scale_options()
