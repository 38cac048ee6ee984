"""Client: which of its methods a server may call, and from which seed it draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from flwr_splitmix.clients import Order, SplitClient, UShapeClient, exchange


@pytest.mark.parametrize(("kind", "name"), [(SplitClient, "step"), (UShapeClient, "encode_test")])
def test_who_overrides_an_exchange_is_told_to_mark_it(kind: type, name: str) -> None:
    def override(self: Any, **arguments: Any) -> dict[str, Any]:
        return {}

    sentence = rf"Mine\.{name} overrides an exchange.*decorate it with @exchange too"
    with pytest.raises(TypeError, match=sentence):
        type("Mine", (kind,), {name: override})
    marked = type("Mine", (kind,), {name: exchange(override)})
    assert issubclass(marked, kind)


def test_an_override_from_beside_is_seen_too() -> None:
    class Beside:
        def decode(self, **arguments: Any) -> dict[str, Any]:
            return {}

    with pytest.raises(TypeError, match=r"Mixed\.decode overrides an exchange"):
        type("Mixed", (Beside, UShapeClient), {})


class Drawn(Dataset[Any]):
    """Draws each input from torch's generator, and keeps what it drew."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.seen.append(torch.randn(4, 2))
        return self.seen[-1], 0


def test_a_look_at_the_data_before_a_round_draws_from_a_seed_of_its_own() -> None:
    """It advanced the caller's generator, and did not repeat."""
    data = Drawn()
    looking = SplitClient(nn.Linear(2, 3), data, batch_size=2, device="cpu")

    def drawn(order: Order) -> Tensor:
        data.seen.clear()
        looking.attach(order, None)
        return torch.stack(data.seen[:1])

    before = torch.get_rng_state()
    first = drawn(Order(0, 1, 1, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn(Order(0, 1, 1, 1)), first)
    assert not torch.equal(drawn(Order(0, 2, 1, 1)), first)
    assert not torch.equal(drawn(Order(1, 1, 1, 1)), first)
