"""A user's `configure_train` may leave messages out or reorder them, and sends no client two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import Krum

from flwr_splitmix import SplitClient
from flwr_splitmix.hiding import DPForward
from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.ticket import RECORD
from flwr_splitmix.server.aggregation import AggregatorError
from flwr_splitmix.server.aggregation.answers import messages_of
from flwr_splitmix.server.messages import messages_to
from flwr_splitmix.strategies import PSL, SFL, DPForwardSL, SplitStrategy
from flwr_splitmix.testing.toy import Toy, sgd
from flwr_splitmix.testing.toy_texts import TextToy
from tests.links.fake_grid import FakeGrid, toy_app
from tests.links.rounds.streamed import TOY, start

ORDERS = {1: [2, 0, 1], 2: [1, 0], 3: [2, 1]}
"""By round, whose messages are sent, in this order."""


def asking(kind: type[Any], orders: dict[int, list[int]]) -> type[Any]:
    """Return a subclass that sends a round's messages to these clients, in this order."""

    class Own(kind):  # type: ignore[misc]
        def configure_train(self, server_round: int, *arguments: Any) -> Sequence[Message]:
            messages = super().configure_train(server_round, *arguments)
            return [messages[client] for client in orders[server_round]]

    return Own


def rows(kind: type[SplitStrategy], orders: dict[int, list[int]]) -> list[dict[str, Any]]:
    toy = Toy(clients=3, examples=(8, 12, 20))
    strategy = asking(kind, orders)(toy.upper(), device="cpu", optimizer=sgd(0.1))
    strategy.fit(toy.make_clients(sgd(0.1)), len(orders))
    timed = ("seconds", "per_second", "slowest", "time", "memory")
    return [
        {name: value for name, value in row.items() if not any(word in name for word in timed)}
        for row in strategy.rows
    ]


@pytest.mark.parametrize("kind", [SFL, PSL])
def test_the_order_of_messages_changes_nothing(kind: type[SplitStrategy]) -> None:
    """Neither is a client left out for another's sizes, nor is an update's norm another's."""
    assert rows(kind, ORDERS) == rows(kind, {number: sorted(ORDERS[number]) for number in ORDERS})


def test_an_epsilon_is_of_who_reported_it() -> None:
    """Client 0 must not be taken in round 5 for the one that has spent more."""
    toy = TextToy(clients=2, hiding=lambda: DPForward(epsilon=8.0, clip_norm=2.0, releases=8))
    orders = {1: [1], 2: [1], 3: [1], 4: [1], 5: [1, 0], 6: [0]}
    strategy = asking(DPForwardSL, orders)(toy.server(), device="cpu", steps_per_round=2)
    clients = toy.clients_for(strategy)
    strategy.fit(clients, len(orders))
    spent = [client.epsilon or 0.0 for client in clients]
    assert spent[0] < spent[1] == strategy.rows[-1]["train_epsilon"]


def test_every_message_names_its_round_to_mods() -> None:
    """As those of Flower's strategies do, whose mods read it from both kinds of messages."""
    named: list[tuple[str, int, Any]] = []

    def noting(method: str) -> Any:
        def configure(strategy: SFL, server_round: int, *arguments: Any) -> list[Message]:
            messages = list(getattr(SFL, method)(strategy, server_round, *arguments))
            for message in messages:
                config = message.content.config_records["config"]
                named.append((message.metadata.message_type, server_round, config["server-round"]))
            return messages

        return configure

    methods = ("configure_train", "configure_evaluate")
    kind: Any = type("Own", (SFL,), {method: noting(method) for method in methods})
    toy = Toy(clients=2, tests=4)
    strategy = kind(toy.upper(), device="cpu", steps_per_round=1, evaluation="federated")
    strategy.fit(toy.make_clients(), 2)
    assert set(named) == {(kind, n, n) for kind in ("train", "evaluate") for n in (1, 2)}


class Counting(SplitClient):
    """Counts its attaches."""

    attached = 0

    def attach(self, *arguments: Any) -> dict[str, Any]:
        Counting.attached += 1
        return super().attach(*arguments)


SENTENCE = "configure_train of Own gives client 1 two messages; a round takes one for each client"


@pytest.mark.parametrize("kind", [SFL, PSL])
def test_two_messages_to_one_client_are_refused_before_it_trains(kind: type[SplitStrategy]) -> None:
    toy = Toy(clients=3)
    strategy = asking(kind, {1: [0, 1, 2, 1]})(toy.upper(), device="cpu", optimizer=sgd(0.1))
    Counting.attached = 0
    with pytest.raises(AggregatorError, match=SENTENCE):
        strategy.fit(toy.make_clients(sgd(0.1), Counting), 1)
    assert Counting.attached == 0


@pytest.mark.usefixtures("outside_of_a_run")
def test_two_messages_to_one_node_are_refused_before_it_is_asked() -> None:
    """Over Ray the ServerApp would wait for the reply to each until its timeout."""
    grid = FakeGrid(toy_app(TOY), TOY.clients)
    strategy = asking(SFL, {1: [0, 1, 2, 3, 1]})(TOY.upper(), device="cpu", optimizer=sgd(0.1))
    with pytest.raises(AggregatorError, match=SENTENCE):
        start(strategy, StreamLink(address="127.0.0.1:0"), grid, 1)
    grid.wait()
    assert {message.metadata.message_type for message in grid.sent} == {"query"}


def test_two_messages_to_one_node_are_refused_whatever_clients_they_name() -> None:
    messages = messages_to([7, 7], RecordDict(), "train", in_run=False)
    for client, message in enumerate(messages):
        message.content = RecordDict({RECORD: ConfigRecord({"client": client})})
    with pytest.raises(AggregatorError, match="gives client 1 two messages"):
        messages_of(messages, Krum(), "configure_train")
