"""Texts with tokens beyond the head's vocabulary are refused when the client is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import TextSet, UShapeClient
from flwr_splitmix.hiding import MixGuard, MixGuardOptions
from flwr_splitmix.testing.laws import TextToy
from flwr_splitmix.testing.toy_texts import VOCABULARY, ToyHead
from tests.clients.ushape import ORDER, encode

FOREIGN = TextSet([torch.tensor([3, 4]), torch.tensor([5, VOCABULARY, 6])], [0, 1])


def test_public_texts_of_another_tokenizer_are_refused() -> None:
    toy = TextToy(clients=1)
    hiding = MixGuard(FOREIGN, vocab_size=VOCABULARY, options=MixGuardOptions(k=2))
    with pytest.raises(ValueError, match=r"^public has token id 23, .* vocabulary has 23 "):
        UShapeClient(toy.head(), toy.tail(), toy.texts(0, 4), device="cpu", hiding=hiding)


@pytest.mark.parametrize("argument", ["data", "test_data", "benchmark_data"])
def test_texts_of_another_tokenizer_are_refused(argument: str) -> None:
    toy = TextToy(clients=1)
    texts: dict[str, Any] = {"data": toy.texts(0, 4), argument: FOREIGN}
    with pytest.raises(ValueError, match=rf"^{argument} has token id 23, .* vocabulary has 23 "):
        UShapeClient(toy.head(), toy.tail(), device="cpu", **texts)


class Placed(nn.Module):
    """Its table of positions is larger than its vocabulary; it has no room for a long text."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(64, 5)
        self.words = nn.Embedding(VOCABULARY, 5)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        torch.rand(1)
        together: Tensor = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        return together


def test_a_table_of_positions_is_no_vocabulary_and_the_trial_leaves_no_trace() -> None:
    toy, head = TextToy(clients=1), Placed()
    with pytest.raises(ValueError, match=r"^data has token id 23, .* vocabulary has 23 "):
        UShapeClient(head, toy.tail(), FOREIGN, device="cpu")
    running_mean, rng_state = head.norm.running_mean, torch.get_rng_state()
    assert running_mean is not None
    before = running_mean.clone()
    UShapeClient(head, toy.tail(), toy.texts(0, 4), device="cpu", test_data=toy.texts(4, 4))
    assert head.training
    assert torch.equal(running_mean, before)
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert not head.words._forward_pre_hooks


class Hashing(ToyHead):
    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return super().forward(ids % VOCABULARY, mask)


def test_a_head_may_make_its_own_ids_of_any() -> None:
    toy = TextToy(clients=1)
    texts = TextSet([torch.tensor([3, VOCABULARY + 1])] * 4, [0] * 4)
    client = UShapeClient(Hashing(toy.width, 0.0), toy.tail(), texts, device="cpu", batch_size=2)
    client.attach(ORDER, None)
    assert encode(client)["messages"][0].shape == (2, 2, toy.width)
