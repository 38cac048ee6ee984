"""A mixture of a few groups for an upper segment."""

from __future__ import annotations

import torch

from flwr_splitmix.mixers import Mixed, Source
from flwr_splitmix.testing.toy import Toy

GROUPS, B = 3, 4
"""Groups, and samples in each."""


TOY = Toy(dropout=0.0, batch_norm=False)


LR = 0.5


def mixture(groups: int = GROUPS) -> Mixed:
    source = torch.Generator().manual_seed(0)
    smashed = torch.randn(groups * B, 6, 3, dtype=torch.float64, generator=source)
    targets = torch.rand(groups * B, 3, dtype=torch.float64, generator=source)
    targets /= targets.sum(1, keepdim=True)
    return Mixed(smashed, targets, tuple(Source(0, (), 1.0) for _ in range(groups)))
