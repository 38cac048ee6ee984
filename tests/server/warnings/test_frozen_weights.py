"""Frozen weights of averaged heads and tails: clients whose own differ are named, once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from flwr_splitmix import UShapeClient
from flwr_splitmix.strategies import UShapeStrategy, USplitFL, USplitSL

SAID = "other frozen weights in head or tail than client"


class Part(nn.Module):
    """A part that ignores its mask; as a tail it takes the mean over tokens."""

    def __init__(self, layer: nn.Module, *, mean: bool = False) -> None:
        super().__init__()
        self.layer, self.mean = layer, mean

    def forward(self, inputs: Tensor, mask: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs.mean(1) if self.mean else inputs)
        return outputs


class LowRank(nn.Linear):
    """A frozen layer with an adapter that learns."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.requires_grad_(False)
        self.down, self.up = (nn.Parameter(torch.randn(n, 2)) for n in (inputs, outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + inputs @ self.down @ self.up.T


def client(
    index: int,
    seed: int,
    layer: Callable[[int, int], nn.Module] = nn.Linear,
    kind: type[UShapeClient] = UShapeClient,
    **options: Any,
) -> UShapeClient:
    source = torch.Generator().manual_seed(index)
    data: Any = TensorDataset(
        torch.randn(8, 4, 6, generator=source), torch.randint(0, 3, (8,), generator=source)
    )
    torch.manual_seed(seed)
    head, tail = Part(layer(6, 8)), Part(nn.Linear(8, 3), mean=True)
    return kind(head, tail, data, batch_size=4, device="cpu", **options)


def warnings(
    caplog: pytest.LogCaptureFixture,
    clients: Sequence[UShapeClient],
    kind: type[UShapeStrategy] = USplitFL,
    rounds: int = 2,
) -> list[str]:
    """Return what is said of frozen weights in a run."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "flwr"):
        kind(Part(nn.Linear(8, 8)), device="cpu").fit(clients, rounds)
    return [message for message in caplog.messages if "frozen weights" in message]


def test_clients_with_frozen_heads_of_other_seeds_are_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They train against each other: accuracy 0.13 where 0.31 is reached."""
    (warning,) = warnings(
        caplog, [client(i, seed, learns="tail") for i, seed in enumerate((0, 1, 2))]
    )
    assert warning.startswith(f"clients 1 and 2 have {SAID} 0: ")
    assert "torch.manual_seed" in warning


def test_most_clients_are_right(caplog: pytest.LogCaptureFixture) -> None:
    (warning,) = warnings(
        caplog, [client(i, seed, learns="tail") for i, seed in enumerate((1, 0, 0))]
    )
    assert warning.startswith(f"client 0 has {SAID} 1")


def test_clients_of_earlier_rounds_count(caplog: pytest.LogCaptureFixture) -> None:
    """Each round has one client, which is alike with itself."""

    class OneByOne(USplitFL):
        def configure_train(self, server_round: int, *arguments: Any) -> list[Message]:
            return [list(super().configure_train(server_round, *arguments))[server_round - 1]]

    (warning,) = warnings(caplog, [client(i, seed=i, learns="tail") for i in range(2)], OneByOne)
    assert warning.startswith(f"client 1 has {SAID} 0")


def test_adapters_of_other_bases_are_named(caplog: pytest.LogCaptureFixture) -> None:
    (warning,) = warnings(caplog, [client(i, seed=i, layer=LowRank) for i in range(2)])
    assert warning.startswith(f"client 1 has {SAID} 0")
    assert warnings(caplog, [client(i, seed=0, layer=LowRank) for i in range(2)]) == []


@pytest.mark.parametrize(
    ("seeds", "learns", "kind"),
    [((0, 0), "tail", USplitFL), ((0, 1), "all", USplitFL), ((0, 1), "tail", USplitSL)],
    ids=["one seed", "nothing frozen", "nothing averaged"],
)
def test_nothing_is_said_where_nothing_is_wrong(
    caplog: pytest.LogCaptureFixture,
    seeds: Sequence[int],
    learns: str,
    kind: type[UShapeStrategy],
) -> None:
    clients = [client(i, seed, learns=learns) for i, seed in enumerate(seeds)]
    assert warnings(caplog, clients, kind) == []


class Liar(UShapeClient):
    """A client that says something else of its frozen weights."""

    says: Any = None

    def attach(self, *arguments: Any) -> dict[str, Any]:
        return {**super().attach(*arguments), "frozen-weights": self.says}


@pytest.mark.parametrize(
    "says", ["0.5", True, [1.0], float("nan"), float("inf"), 10**400], ids=lambda v: str(v)[:9]
)
def test_who_says_what_is_no_number_is_left_out(
    caplog: pytest.LogCaptureFixture, says: Any
) -> None:
    kind = type("Own", (Liar,), {"says": says})
    clients = [client(0, 0, learns="tail"), client(1, 0, kind=kind, learns="tail")]
    assert warnings(caplog, clients, rounds=1) == []
    assert "says that its frozen-weights is" in caplog.text
