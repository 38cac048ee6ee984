"""Small segments of somebody's own, and what a client makes of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import Order, SplitClient
from flwr_splitmix.mixers import FullShare

ORDER = Order(client=0, seed=9, server_round=1, num_rounds=2)
INPUTS, LABELS = torch.randn(8, 5), torch.arange(8) % 3
DATA: Any = TensorDataset(INPUTS, LABELS)


class Lower(nn.Module):
    """Inputs (b, 5) to smashed data (b, 2, 3)."""

    def __init__(self, first: nn.Module | None = None, **named: Any) -> None:
        super().__init__()
        self.first = first or nn.Identity()
        self.linear = nn.Linear(5, 6)
        for name, value in named.items():
            setattr(self, name, value)

    def forward(self, inputs: Tensor) -> Tensor:
        smashed: Tensor = self.linear(self.first(inputs))
        return smashed.view(len(inputs), 2, 3)


def smashed_of(segment: nn.Module, data: Any = DATA, **options: Any) -> tuple[Any, Tensor]:
    """Return a client's description and its first upload."""
    client = SplitClient(segment, data, batch_size=4, device="cpu", **options)
    described = client.attach(ORDER, None)
    arguments = {"number": 0, "progress": 0.0, "gradient": None, "plan": [FullShare().to_wire()]}
    return described, client.run("step", arguments)["smashed"][0]


class Part(nn.Module):
    """A head (b, 5) to (b, 1, 6), or with `width` 3 a tail of as many classes."""

    def __init__(self, width: int = 6, inputs: int = 5, **named: Any) -> None:
        super().__init__()
        for name, value in named.items():
            setattr(self, name, value)
        self.linear = nn.Linear(inputs, width)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        outputs: Tensor = self.linear(inputs)
        return outputs[:, None] if outputs.dim() == 2 else outputs[:, 0]


class Steep(Part):
    """A tail that is sure of class 0, so that the gradient of any other label overflows."""

    def __init__(self) -> None:
        super().__init__(3, 6)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return super().forward(inputs, mask) * 1e25
