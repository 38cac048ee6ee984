"""The number by which frozen weights are compared: what it tells apart, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from flwr_splitmix.clients import UShapeClient
from flwr_splitmix.clients.ushape.frozen_weights import MAX_SKETCH_DIFFERENCE, sketch
from flwr_splitmix.testing.laws import TextToy
from tests.clients.ushape import ORDER


def weights(seed: int) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(seed)
    sizes = {"embedding": (900, 16), "linear": (16, 16), "bias": (16,)}
    return {name: torch.randn(*size, generator=source) / 50 for name, size in sizes.items()}


def test_weights_of_other_seeds_have_other_numbers() -> None:
    numbers = sorted(sketch(weights(seed)) or 0.0 for seed in range(20))
    apart = [high - low for low, high in pairwise(numbers)]
    assert len(numbers) == 20
    assert all(each > MAX_SKETCH_DIFFERENCE for each in apart)


@pytest.mark.parametrize("name", ["embedding", "linear", "bias"])
def test_one_tensor_that_differs_is_seen_beside_larger_ones(name: str) -> None:
    one, other = weights(0), weights(1)
    assert (
        abs((sketch(one) or 0.0) - (sketch(one | {name: other[name]}) or 0.0))
        > MAX_SKETCH_DIFFERENCE
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda w: torch.nextafter(w, torch.zeros(())),
        lambda w: w * (1 + 1e-6 * torch.rand(w.shape)),
        lambda w: w.double(),
    ],
    ids=["last bit", "millionths", "float64"],
)
def test_what_another_processor_rounds_otherwise_is_alike(
    change: Callable[[Tensor], Tensor],
) -> None:
    """One seed gives other last bits on another processor or with another torch."""
    for seed in range(20):
        originals = weights(seed)
        near = sketch({name: change(weight) for name, weight in originals.items()})
        assert abs((sketch(originals) or 0.0) - (near or 0.0)) <= MAX_SKETCH_DIFFERENCE


def test_it_tells_no_more_than_a_few_digits() -> None:
    for seed in range(20):
        number = sketch(weights(seed)) or 0.0
        assert number == round(number, 4)
        assert abs(number) < 10


def test_without_weights_or_with_infinite_ones_there_is_none() -> None:
    assert sketch({}) is None
    assert sketch({"w": torch.tensor([1.0, torch.inf])}) is None
    assert sketch({"w": torch.zeros(3)}) == 0


def test_the_end_of_a_long_weight_counts_too() -> None:
    one = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    other = torch.cat([one[:4500], -one[4500:]])
    assert abs((sketch({"w": one}) or 0.0) - (sketch({"w": other}) or 0.0)) > MAX_SKETCH_DIFFERENCE


def test_huge_weights_have_a_number_and_what_is_not_there_has_none() -> None:
    originals = weights(0)
    huge = {name: weight * 1e37 for name, weight in originals.items()}
    assert sketch(huge) == pytest.approx(sketch(originals), abs=MAX_SKETCH_DIFFERENCE)
    lazy = nn.LazyLinear(3).weight
    absent = {"lazy": lazy, "meta": torch.ones(2, device="meta"), "complex": torch.ones(2) * 1j}
    assert sketch(absent) is None
    assert sketch(originals | absent) == sketch(originals)


@pytest.fixture
def client() -> Iterator[UShapeClient]:
    toy_client = TextToy(clients=1).clients_for()[0]
    yield toy_client
    toy_client.close()


def test_only_where_heads_and_tails_are_averaged_is_it_sent(client: UShapeClient) -> None:
    """Elsewhere a head may be its client's secret, and a server could confirm a guess of it."""
    client.head.requires_grad_(False)
    assert "frozen-weights" not in client.attach(ORDER, None)
    assert client.attach(replace(ORDER, averaged=True), None)["frozen-weights"] == sketch(
        {
            name: p
            for name, p in client.segments.named_parameters()
            if name.startswith("head.") and not p.requires_grad
        }
    )


def test_weights_that_learn_and_buffers_are_not_in_it(client: UShapeClient) -> None:
    averaged = replace(ORDER, averaged=True)
    assert "frozen-weights" not in client.attach(averaged, None)
    client.head.register_buffer("of_its_data", torch.randn(5))
    assert "frozen-weights" not in client.attach(averaged, None)
    client.head.requires_grad_(False)
    number = client.attach(averaged, None)["frozen-weights"]
    client.head.of_its_data = torch.randn(5)
    with torch.no_grad():
        for weight in client.tail.parameters():
            weight.add_(1.0)
    assert client.attach(averaged, None)["frozen-weights"] == number


def test_layers_that_are_frozen_later_count_from_then_on(client: UShapeClient) -> None:
    averaged = replace(ORDER, averaged=True)
    client.head.requires_grad_(False)
    before = client.attach(averaged, None)["frozen-weights"]
    last = [m for m in client.tail.modules() if isinstance(m, nn.Linear)][-1]
    last.requires_grad_(False)
    assert client.attach(averaged, None)["frozen-weights"] != before
