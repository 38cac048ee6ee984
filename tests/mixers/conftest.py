"""Secrets that repeat, for tests of noise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from flwr_splitmix.seeding import seeded_secrets


@pytest.fixture
def repeatable() -> Iterator[None]:
    with seeded_secrets(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
