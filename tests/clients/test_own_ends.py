"""Heads, tails and trunks of somebody's own: what works, and what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix.clients import ClientError, UShapeClient
from flwr_splitmix.clients.ushape.ends import Ends
from flwr_splitmix.data.errors import ExamplesError
from flwr_splitmix.data.masked_batch import MaskedBatch
from flwr_splitmix.links import LinkError
from flwr_splitmix.segments.modules import with_statistics
from flwr_splitmix.strategies import USplitFL, USplitSL
from tests.clients.own_segments import DATA, INPUTS, ORDER, Part


class Trunk(nn.Linear):
    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(inputs)


@pytest.mark.parametrize("name", ["head", "tail", "trunk"])
def test_a_part_of_the_u_shape_without_a_mask_is_named_at_once(name: str) -> None:
    parts = {"head": Part(), "tail": Part(3, 6), "trunk": Trunk(6, 6), name: nn.Linear(6, 6)}

    def make() -> None:
        UShapeClient(parts["head"], parts["tail"], DATA, device="cpu")
        USplitSL(parts["trunk"], device="cpu").prepare(None)

    with pytest.raises(TypeError, match=rf"^{name} is called with \(inputs, mask\): give its"):
        make()


class Pair(Part):
    """A part that returns its state, too, as torch's recurrent layers do."""

    def forward(self, inputs: Tensor, mask: Tensor) -> Any:
        return super().forward(inputs, mask), mask


def test_a_head_or_tail_that_returns_a_tuple_is_told_what_it_must_return() -> None:
    """An error about an attribute that a tuple lacks would not tell."""
    head = UShapeClient(Pair(), Part(3, 6), DATA, device="cpu")
    with pytest.raises(ClientError, match=r"head must return one tensor .* a tuple of a tensor \("):
        head.attach(ORDER, None)
    tail = UShapeClient(Part(), Pair(3, 6), DATA, batch_size=4, device="cpu")
    tail.attach(ORDER, None)
    reply = tail.run("encode", {"number": 0, "progress": 0.0, "gradient": None})
    with pytest.raises(ExamplesError, match=r"tail must return one tensor .* a tuple; return the"):
        tail.run("decode", {"number": 0, "outputs": reply["messages"]})


class TokensFirst(Part):
    """Returns (tokens, batch, width) for two tokens."""

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return super().forward(inputs, mask).transpose(0, 1).expand(2, -1, -1)


class OneToken(Part):
    """Converts rows of integers itself, as one token each."""

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        return super().forward(inputs.float(), mask)


@pytest.mark.parametrize(
    ("head", "inputs", "message"),
    [
        (TokensFirst(), INPUTS, "the head returned 2 rows for 1 example; .* batch_first=True"),
        (
            OneToken(),
            torch.arange(40, dtype=torch.uint8).view(8, 5),
            r"whole numbers \(batch, 5\) are token ids, and the head returned 1 token of each 5; "
            r"rows of a table and series must be floating: \.float\(\)",
        ),
    ],
)
def test_a_head_that_makes_other_tokens_than_its_inputs_have_is_told_why(
    head: nn.Module, inputs: Tensor, message: str
) -> None:
    """The client names it before the server refuses the first step by the shapes alone."""
    data: Any = TensorDataset(inputs, torch.arange(8) % 3)
    client = UShapeClient(head, Part(3, 6), data, batch_size=4, device="cpu")
    with pytest.raises(ClientError, match=message):
        client.attach(ORDER, None)


def normed() -> UShapeClient:
    head = Part()
    head.linear = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6))  # type: ignore[assignment]
    return UShapeClient(head, Part(3, 6), DATA, batch_size=4, device="cpu")


def test_ends_whose_running_statistics_would_not_be_averaged_are_refused() -> None:
    """Each client would score the averaged weights with statistics of its own, without a word."""
    with pytest.raises(LinkError, match="the head has BatchNorm1d, whose running statistics are"):
        USplitFL(Trunk(6, 6), device="cpu").fit([normed(), normed()], 1)
    USplitSL(Trunk(6, 6), device="cpu").fit([normed(), normed()], 1)
    assert not with_statistics(nn.BatchNorm1d(6, track_running_stats=False))


def test_so_may_a_head_of_the_u_shape() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(9, 4)
            self.scale: Tensor | None = None

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            if self.scale is None:
                self.scale = torch.ones(4)
            hidden: Tensor = self.embedding(ids) * self.scale
            return hidden

    ends = Ends(Head(), nn.Linear(4, 9))
    ids = torch.ones(1, 3, dtype=torch.int64)
    batch = MaskedBatch.of((ids, torch.zeros(1)), torch.device("cpu"))
    assert ends.width(batch, own_masks=False) == 4
    assert ends.segments["head"](ids, ids).requires_grad


class LazyPart(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(width)

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        outputs: Tensor = self.linear(inputs)
        return outputs[:, None] if outputs.dim() == 2 else outputs[:, 0]


@pytest.mark.parametrize("name", ["head", "tail"])
def test_a_head_or_tail_without_a_shape_is_refused_at_once(name: str) -> None:
    """Torch's own error would come in the first round."""
    head, tail = (LazyPart(6), Part(3, 6)) if name == "head" else (Part(), LazyPart(3))
    with pytest.raises(ClientError, match=rf"^the {name}'s linear\.weight has no shape yet"):
        UShapeClient(head, tail, DATA)
    tail(head(INPUTS, torch.ones(8, 1)), torch.ones(8, 1))
    UShapeClient(head, tail, DATA).attach(ORDER, None)
