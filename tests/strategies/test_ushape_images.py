"""The U shape on images: split equals whole, what crosses the cuts, and each way to hide them."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix import UShapeClient
from flwr_splitmix.clients import ClientError
from flwr_splitmix.data.batches import batch_indices
from flwr_splitmix.hiding import DPSGD, HIDINGS, Hiding, NoPeek
from flwr_splitmix.hiding.no_peek import distance_correlation
from flwr_splitmix.links import LinkError
from flwr_splitmix.observers import Observer
from flwr_splitmix.optimizers import adamw
from flwr_splitmix.schedule import constant
from flwr_splitmix.segments import VisionParts, split_vision_parts
from flwr_splitmix.strategies import USHAPE_STRATEGIES, UShapeStrategy
from flwr_splitmix.testing.laws import sgd
from flwr_splitmix.words import listed
from tests.clients.ushape import ORDER, encode

EXAMPLES, BATCH, STEPS, SEED = 12, 4, 3, 5


def parts(dtype: torch.dtype = torch.float64) -> VisionParts:
    model = split_vision_parts(
        image_size=16, patch_size=8, depth=3, embed_dim=8, num_heads=2, num_classes=3, seed=0
    )
    for part in model:
        part.to(dtype)
    return model


def images(client: int, dtype: torch.dtype = torch.float64) -> Any:
    source = torch.Generator().manual_seed(client)
    pixels = torch.rand(EXAMPLES, 1, 16, 16, generator=source, dtype=dtype)
    return TensorDataset(pixels, torch.randint(3, (EXAMPLES,), generator=source))


def clients_of(
    model: VisionParts, number: int = 2, hiding: Callable[[], Hiding] = Hiding, **options: Any
) -> list[UShapeClient]:
    return [
        UShapeClient(
            deepcopy(model.head), deepcopy(model.tail), images(i), batch_size=BATCH,
            hiding=hiding(), optimizer=sgd(), schedule=constant, device="cpu", **options,
        )
        for i in range(number)
    ]  # fmt: skip


def trained(
    name: str, clients: list[UShapeClient], trunk: nn.Module, rounds: int = 1, **options: Any
) -> UShapeStrategy:
    strategy: UShapeStrategy = USHAPE_STRATEGIES[name](
        trunk, optimizer=sgd(), schedule=constant, device="cpu", seed=SEED, **options
    )
    strategy.fit(clients, rounds)
    return strategy


def test_a_client_and_the_trunk_learn_what_the_unsplit_model_learns() -> None:
    model = parts()
    whole = nn.Sequential(*deepcopy(model))
    (client,) = clients_of(model, 1)
    strategy = trained("USplitSL", [client], deepcopy(model.trunk))
    optimizer = torch.optim.SGD(whole.parameters(), lr=1.0)
    pixels, labels = images(0).tensors
    for number in range(STEPS):
        chosen = torch.from_numpy(batch_indices(EXAMPLES, BATCH, SEED, 0, number))
        optimizer.zero_grad()
        loss: Any = F.cross_entropy(whole(pixels[chosen]).float(), labels[chosen])
        loss.backward()
        optimizer.step()
    head, trunk, tail = whole
    for segment, expected in (
        (client.head, head), (strategy.trunk.module, trunk), (client.tail, tail),
    ):  # fmt: skip
        for name, weight in expected.state_dict().items():
            torch.testing.assert_close(segment.state_dict()[name], weight, rtol=0, atol=1e-7)


class Kept(Observer):
    """Keeps what crosses the cuts."""

    def __init__(self) -> None:
        self.up: list[Any] = []

    def on_exchange(self, event: Any) -> None:
        """Keep a reply of a client."""
        if event.direction == "up":
            self.up.append(event.payload)


def test_neither_images_nor_labels_cross_the_cuts() -> None:
    model, recorder = parts(), Kept()
    trained("USplitSL", clients_of(model, 1), model.trunk, observers=[recorder])
    replies = [reply for reply in recorder.up if reply]
    assert {key for reply in replies for key in reply} == {"messages", "mask", "gradients"}
    first = replies[0]
    assert [tuple(message.shape) for message in first["messages"]] == [(BATCH, 5, 8)]
    assert torch.equal(first["mask"], torch.ones(BATCH, 5, dtype=torch.uint8))


@pytest.mark.parametrize(
    "name", [name for name, kind in USHAPE_STRATEGIES.items() if not kind.hiding.texts_only]
)
def test_each_way_to_hide_images_trains_and_is_evaluated(name: str) -> None:
    model = parts(torch.float32)
    kind = USHAPE_STRATEGIES[name].hiding
    data = images(7, torch.float32)
    clients = [
        UShapeClient(
            deepcopy(model.head), deepcopy(model.tail), images(i, torch.float32), batch_size=BATCH,
            hiding=kind(), test_data=data, device="cpu",
        )
        for i in range(2)
    ]  # fmt: skip
    before = {key: weight.clone() for key, weight in clients[0].weights().items()}
    strategy = trained(name, clients, model.trunk, rounds=2, evaluation="federated")
    row = strategy.rows[-1]
    assert 0 <= row["accuracy"] <= 1
    assert row["eval_loss"] > 0
    assert any(not torch.equal(before[key], w) for key, w in clients[0].weights().items())
    assert ("train_epsilon" in row) == kind.accounts


def test_the_correlation_of_nopeek_is_that_of_the_papers_samples() -> None:
    model = parts()
    (client,) = clients_of(model, 1, NoPeek)
    client.attach(ORDER, None)
    reply = encode(client)
    pixels = images(0).tensors[0][torch.from_numpy(client.batches.indices)]
    expected = distance_correlation(pixels.flatten(1), reply["messages"][0].flatten(1))
    assert client.hiding.metrics()["distance-correlation"] == pytest.approx(float(expected))


def test_dp_sgd_with_next_to_no_noise_and_no_clipping_is_plain_training() -> None:
    model = parts()
    plain, noised = clients_of(model, 1), clients_of(model, 1, lambda: DPSGD(1e-12, 1e3))
    trained("USplitSL", plain, deepcopy(model.trunk))
    trained("DPSGDSL", noised, deepcopy(model.trunk))
    for name, weight in plain[0].weights().items():
        torch.testing.assert_close(noised[0].weights()[name], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in HIDINGS if kind.texts_only])
def test_a_way_to_hide_texts_says_that_it_takes_no_images(kind: Any) -> None:
    model = parts()
    clients = clients_of(model, 2, lambda: kind(images(9), vocab_size=4))
    others = listed(other.__name__ for other in HIDINGS if not other.texts_only)
    with pytest.raises(LinkError, match=f"{kind.__name__} hides texts.*use {others}"):
        trained("USplitSL", clients, model.trunk)


@pytest.mark.parametrize("kind", [kind for kind in HIDINGS if kind.least_batch(texts=False) > 1])
def test_a_way_to_hide_among_images_refuses_batches_of_one(kind: type[Hiding]) -> None:
    """NaiveMix would send each image unmixed, and NoPeek report a correlation of 0 for it."""
    model = parts()
    client = UShapeClient(
        model.head, model.tail, images(0), batch_size=1, hiding=kind(), device="cpu"
    )
    message = f"batch_size is 1, but {kind.__name__} works only .*: it must be at least 2"
    with pytest.raises(ClientError, match=message):
        client.attach(ORDER, None)


class Columns(nn.Module):
    """A head of an MLP, whose hidden state is one token."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """Turn rows (b, 6) into (b, 1, 8)."""
        hidden: Tensor = self.layer(rows).relu().unsqueeze(1)
        return hidden


class Answer(nn.Module):
    """A tail for one token."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Turn (b, 1, 8) into logits (b, 2)."""
        logits: Tensor = self.layer(hidden.squeeze(1))
        return logits


class Middle(nn.Module):
    """A trunk, to which masks mean nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Turn (b, 1, 8) into (b, 1, 8)."""
        output: Tensor = self.layer(hidden).relu()
        return output


def test_rows_of_a_table_are_learned_in_the_u_shape() -> None:
    source = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 6, generator=source)
    data: Any = TensorDataset(rows, (rows[:, 0] + rows[:, 1] > 0).long())
    torch.manual_seed(0)
    client = UShapeClient(
        Columns(), Answer(), data, batch_size=20, test_data=data, optimizer=adamw(0.03),
        device="cpu",
    )  # fmt: skip
    strategy = USHAPE_STRATEGIES["USplitSL"](
        Middle(), evaluation="federated", optimizer=adamw(0.03), device="cpu"
    )
    strategy.fit([client], 5)
    assert strategy.rows[-1]["accuracy"] > 0.8


def test_whole_numbers_below_zero_are_no_token_ids() -> None:
    """They would become 0 without a word."""
    rows = torch.randint(-30, 42, (40, 6), generator=torch.Generator().manual_seed(0))
    data: Any = TensorDataset(rows, torch.zeros(40, dtype=torch.int64))
    client = UShapeClient(Columns(), Answer(), data, batch_size=20, device="cpu")
    with pytest.raises(
        LinkError, match=r"rows of a table and series must be floating: \.float\(\)"
    ):
        USHAPE_STRATEGIES["USplitSL"](Middle(), device="cpu").fit([client], 1)
