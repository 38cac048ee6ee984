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
    """So it repeats, and leaves the caller's generator as it is."""
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


class Probing(SplitClient):
    """Draws a number in exchanges of its own, and in one that it overrides."""

    @exchange
    def probe(self, *, index: int) -> dict[str, Any]:
        return {"drawn": float(torch.rand(()))}

    @exchange(place=("layer", "head"))
    def look(self, *, layer: int, head: int) -> dict[str, Any]:
        return {"drawn": float(torch.rand(()))}

    @exchange(place=())
    def ask(self, *, number: int) -> dict[str, Any]:
        return {"drawn": float(torch.rand(()))}

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        return {"drawn": float(torch.rand(()))}


def probing(server_round: int = 1) -> Probing:
    client = Probing(nn.Linear(2, 3), Drawn(), batch_size=2, device="cpu")
    client.attach(Order(0, 1, server_round, 2), None)
    return client


def drawn(client: Probing, method: str, **arguments: Any) -> float:
    return float(client.run(method, arguments)["drawn"])


def test_an_exchange_of_ones_own_draws_anew_in_every_call_of_a_round() -> None:
    """The place in the round may have arguments of any names, not just number, start and part."""
    client = probing()
    draws = [drawn(client, "probe", index=index) for index in (0, 1, 1)]
    assert len(set(draws)) == 3
    again = probing()
    assert [drawn(again, "probe", index=index) for index in (0, 1, 1)] == draws
    client.attach(Order(0, 1, 2, 2), None)
    assert drawn(client, "probe", index=0) == drawn(probing(2), "probe", index=0)


def test_the_arguments_that_place_an_exchange_determine_what_it_draws() -> None:
    client = probing()
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    draws = [drawn(client, "look", layer=layer, head=head) for layer, head in places]
    assert len(set(draws)) == len(places)
    backwards = [drawn(client, "look", layer=layer, head=head) for layer, head in places[::-1]]
    assert backwards == draws[::-1]
    assert drawn(client, "ask", number=0) == drawn(client, "ask", number=1)


def test_an_override_draws_at_the_place_of_what_it_overrides() -> None:
    client = probing()
    draws = [drawn(client, "step", number=number) for number in (0, 1, 0)]
    assert draws[0] == draws[2] != draws[1]


def test_a_place_is_no_single_string() -> None:
    with pytest.raises(TypeError, match=r"place is 'number'; expected .*\('number',\)"):
        exchange(place="number")


def test_an_override_that_lacks_an_argument_of_an_exchange_is_refused_with_its_name() -> None:
    """Otherwise the server's call would fail, and all clients be lost in the first step."""

    class Open(SplitClient):
        @exchange
        def step(self, **options: Any) -> dict[str, Any]:
            return super().step(**options)

    with pytest.raises(TypeError, match=r"Narrow\.step overrides .* with last, too; add last"):

        class Narrow(SplitClient):
            @exchange
            def step(  # type: ignore[override]
                self, *, number: int, progress: float, gradient: Any, plan: Any
            ) -> dict[str, Any]:
                return super().step(number=number, progress=progress, gradient=gradient, plan=plan)


def test_a_place_names_arguments_of_its_exchange() -> None:
    """With a slip in a name, all calls of a round would draw the same numbers."""
    with pytest.raises(TypeError, match="place of the exchange probe names indx, which it does"):

        class Slip(SplitClient):
            @exchange(place=("indx",))
            def probe(self, *, index: int) -> dict[str, Any]:
                return {"index": index}

    marked: Any = exchange
    with pytest.raises(TypeError, match=r"write @exchange\(place=\('index',\)\)"):
        marked(("index",))
