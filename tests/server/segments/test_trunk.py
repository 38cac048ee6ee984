"""What a trunk, and the tail behind it, may do with their inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.strategies import USplitSL
from flwr_splitmix.testing.laws import TextToy


class Beginning(nn.Module):
    """Begins with an activation, in place or not."""

    def __init__(self, part: nn.Module, *, in_place: bool) -> None:
        super().__init__()
        self.bend, self.part = nn.ReLU(inplace=in_place), part

    def forward(self, hidden: Tensor, mask: Tensor) -> Any:
        return self.part(self.bend(hidden), mask)


@pytest.mark.parametrize("which", ["trunk", "tail"])
def test_trunk_and_tail_may_overwrite_their_inputs(which: str) -> None:
    """Torch refuses that of a leaf."""

    def learned(*, in_place: bool) -> list[Tensor]:
        toy = TextToy()
        trunk: nn.Module = toy.server()
        tails: list[nn.Module] = [toy.tail(), toy.tail()]
        if which == "trunk":
            trunk = Beginning(trunk, in_place=in_place)
        else:
            tails = [Beginning(tail, in_place=in_place) for tail in tails]
        clients = [
            UShapeClient(
                toy.head(), tail, toy.texts(i, 12), batch_size=4, test_data=toy.texts(9, 6),
                device="cpu",
            )
            for i, tail in enumerate(tails)
        ]  # fmt: skip
        strategy = USplitSL(trunk, device="cpu", evaluation="federated")
        strategy.fit(clients, 2)
        losses = [torch.tensor([row["loss"], row["eval_loss"]]) for row in strategy.rows]
        weights = [w for client in clients for w in client.weights().values()]
        return [*losses, *weights, *trunk.state_dict().values()]

    for one, other in zip(learned(in_place=True), learned(in_place=False), strict=True):
        assert torch.equal(one, other)


def test_a_trunk_that_detaches_its_input_is_refused() -> None:
    class Detaching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Linear(5, 5).double()

        def forward(self, hidden: Tensor, mask: Tensor) -> Any:
            return self.own(hidden.detach())

    toy = TextToy(clients=2)
    with pytest.raises(ValueError, match=r"the trunk's outputs have no gradient .* not detach"):
        USplitSL(Detaching(), device="cpu").fit(toy.clients_for(), 1)
