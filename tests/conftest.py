"""What all tests share: one thread, so that runs repeat bit for bit and tests run side by side."""

import gc

import pytest

import flwr_splitmix  # noqa: F401  # says how threads wait, which torch reads when it is loaded

# isort: split
import torch

pytest_plugins = ["tests.e2e.one_flower"]

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files with slow tests first: then all workers have something to do until the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Keep what the imports have made out of later collections of garbage, which tests ask for."""
    gc.collect()
    gc.freeze()
