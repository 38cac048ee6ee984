"""The number of steps of a round: announced when it begins, and kept."""

from __future__ import annotations

from typing import Any

import pytest

from flwr_splitmix.events import RoundBegun, RoundDone
from flwr_splitmix.links import Clients
from flwr_splitmix.observers import Observer
from flwr_splitmix.strategies import PSL, USplitSL
from flwr_splitmix.testing.laws import TextToy
from flwr_splitmix.testing.toy import Toy, sgd


class Lengths(Observer):
    def __init__(self) -> None:
        self.announced: list[int | None] = []
        self.taken: list[int] = []

    def on_begin(self, event: RoundBegun) -> None:
        self.announced.append(event.steps)

    def on_round(self, event: RoundDone) -> None:
        self.taken.append(event.steps)


def own(kind: type[Any], method: str) -> type[Any]:
    """Return a subclass that takes as many steps as the round's number, and says so in `method`."""

    def override(self: Any, clients: Clients, *arguments: Any) -> Any:
        self.steps_per_round = clients.server_round
        return getattr(kind, method)(self, clients, *arguments)

    return type("Own", (kind,), {method: override})


def images(kind: type[Any], **options: Any) -> None:
    toy = Toy(clients=2)
    kind(toy.upper(), device="cpu", optimizer=sgd(0.1), **options).fit(toy.make_clients(), 3)


def texts(kind: type[Any], **options: Any) -> None:
    toy = TextToy(clients=2)
    strategy = kind(toy.server(), device="cpu", **options)
    strategy.fit(toy.clients_for(strategy), 3)


SHAPES = pytest.mark.parametrize(("fit", "kind"), [(images, PSL), (texts, USplitSL)])


@SHAPES
def test_a_strategy_may_choose_the_length_of_every_round(fit: Any, kind: type[Any]) -> None:
    seen = Lengths()
    fit(own(kind, "agree"), observers=[seen])
    assert seen.announced == seen.taken == [1, 2, 3]


@SHAPES
def test_a_length_that_changes_within_its_round_is_refused(fit: Any, kind: type[Any]) -> None:
    """It was the next round's, silently: ledgers count on the length that was announced."""
    with pytest.raises(RuntimeError, match=r"after a round of 7 steps had begun: .* in `agree`"):
        fit(own(kind, "train_round"), steps_per_round=7)
