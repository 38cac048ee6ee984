"""What all tests share: one thread, so that runs repeat bit for bit and tests run side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

HERE = Path(__file__).parent
ONE_AFTER_THE_OTHER = ("e2e", "examples", "benchmarks", "links/test_ray.py")
"""Tests with a SuperLink or a Ray of their own: they have one process of `pytest -n` for all."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what needs Flower or Ray into one group, which begins first because it takes longest."""
    grouped = []
    for item in items:
        place = item.path.relative_to(HERE).as_posix()
        if place.startswith(ONE_AFTER_THE_OTHER):
            item.add_marker(pytest.mark.xdist_group("flower"))
            grouped.append(item)
    chosen = set(grouped)
    items[:] = [*grouped, *(item for item in items if item not in chosen)]
