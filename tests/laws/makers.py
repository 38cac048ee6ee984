"""The strategies that the laws are run over: each mixer's, a few that average, an example's.

A strategy that averages differs from its twin in that alone, as tests/strategies shows, and what
averages is the loop of rounds, which knows no mixer: a few with averaging are enough.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.methods import BY_NAME, METHODS, Method
from flwr_splitmix.mixers import Mixer
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.server.aggregation import fedavg
from flwr_splitmix.strategies import STRATEGIES, SplitStrategy
from flwr_splitmix.testing.toy import Toy
from flwr_splitmix.testing.whole import MakeStrategy

EXAMPLE = Path(__file__).parents[2] / "examples" / "block_cutmix.py"

AVERAGING = ("SFL", "CutMixSFL", "DPCutMixSFL")
"""Averaging with nothing else, with clients that are mixed, and with ledgers."""


def alike(methods: Iterable[Method]) -> list[list[Method]]:
    """Return the methods of the L shape, together those of one module that have one mixer."""
    families: dict[tuple[str, str], list[Method]] = {}
    for method in methods:
        if method.shape == "L":
            families.setdefault((method.module, method.mixer), []).append(method)
    return list(families.values())


NAMES = [*(family[0].name for family in alike(METHODS)), *AVERAGING, "BlockCutMix"]

NOISE = GaussianNoise(sigma_s=0.1, sigma_y=0.05, clip_norm=1.5)

# More clients than any toy here has; the labels of a client depend on its index alone.
NEEDED: dict[str, Any] = {"noise": NOISE, "labels": Toy(clients=12).labels()}
"""Options without which some strategies cannot be made."""


def _with_what_it_needs(name: str) -> MakeStrategy:
    return partial(STRATEGIES[name], **{need: NEEDED[need] for need in BY_NAME[name].needs})


EDGES: dict[str, dict[str, Any]] = {
    name: strategy.edge
    for name in STRATEGIES
    if hasattr(strategy := _with_what_it_needs(name)(Toy().upper()), "edge")
}
"""Options of the edges that the strategies with frozen edges need."""


def toy_for(name: str, **fields: Any) -> Toy:
    """Make a toy whose clients are of the kind that a strategy needs."""
    return Toy(edge=EDGES.get(name), **fields)


def maker(name: str) -> MakeStrategy:
    if name in STRATEGIES:
        return _with_what_it_needs(name)
    return partial(SplitStrategy, mixer=block_cutmix(), aggregator=fedavg())


def averages(name: str) -> bool:
    return name == "BlockCutMix" or STRATEGIES[name].averages


def block_cutmix(**options: Any) -> Mixer:
    """Load the mixer of the example by its path: examples are no package."""
    if not EXAMPLE.is_file():
        pytest.skip(f"{EXAMPLE.name} is not in examples/")
    name = "block_cutmix_of_the_laws"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLE)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    mixer = sys.modules[name].BlockCutMix(**options)
    assert isinstance(mixer, Mixer)
    return mixer
