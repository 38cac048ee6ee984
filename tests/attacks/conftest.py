"""The attacks' tests draw the same secrets every time: a rare one defeats a single attempt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from flwr_splitmix.seeding import seeded_secrets


@pytest.fixture(autouse=True)
def repeatable_secrets() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]), seeded_secrets():
        torch.manual_seed(0)
        yield
