"""The strategies that the laws are run over: all that mix, and one of an example."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.mixers import Mixer
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.server.aggregation import fedavg
from flwr_splitmix.strategies import STRATEGIES, SplitStrategy
from flwr_splitmix.testing.toy import Toy
from flwr_splitmix.testing.whole import MakeStrategy

EXAMPLE = Path(__file__).parents[2] / "examples" / "block_cutmix.py"

NAMES = [*STRATEGIES, "BlockCutMix"]


EDGES: dict[str, dict[str, Any]] = {
    "PatchShuffleSL": {"method": "patch", "kappa": 1.0},
    "BatchShuffleSL": {"method": "batch", "kappa": 0.4},
    "SpectralShuffleSL": {"method": "spectral", "kappa": 1.0},
}
"""What the strategies with frozen edges ask of them."""

NOISE = GaussianNoise(sigma_s=0.1, sigma_y=0.05, clip_norm=1.5)


def toy_for(name: str, **fields: Any) -> Toy:
    """Make a toy whose clients are of the kind that a strategy needs."""
    return Toy(edge=EDGES.get(name), **fields)


def maker(name: str) -> MakeStrategy:
    if name in EDGES:
        # More clients than any toy here has; the labels of a client depend on its index alone.
        return partial(STRATEGIES[name], labels=Toy(clients=12).labels())
    if name.startswith("DP"):
        return partial(STRATEGIES[name], noise=NOISE)
    if name in STRATEGIES:
        return STRATEGIES[name]
    return partial(SplitStrategy, mixer=block_cutmix(), aggregator=fedavg())


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
