"""Sequential (relay) split learning: SFL with one client in a round."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flwr_splitmix.events import RoundBegun
from flwr_splitmix.observers import Observer
from flwr_splitmix.schedule import constant
from flwr_splitmix.strategies import SFL
from flwr_splitmix.testing.laws import Toy, check_same_tensors, sgd

ROUNDS, STEPS = 6, 3


class Order(Observer):
    """Notes who took part, round by round."""

    def __init__(self) -> None:
        self.clients: list[int] = []

    def on_begin(self, event: RoundBegun) -> None:
        self.clients.extend(event.descriptions)


def test_rounds_of_one_client_train_the_whole_model_on_one_client_after_another() -> None:
    # Each batch holds all examples of a client, so that their order changes nothing.
    toy = Toy(clients=4, examples=4, batch=4, dropout=0.0, batch_norm=False)
    order = Order()
    strategy = SFL(
        toy.upper(),
        optimizer=sgd(),
        schedule=constant,
        steps_per_round=STEPS,
        fraction_train=0.25,
        min_nodes=1,
        observers=[order],
        device="cpu",
    )
    result = strategy.fit(toy.make_clients(), ROUNDS)
    assert len(order.clients) == ROUNDS
    assert len(set(order.clients)) > 1

    whole = nn.Sequential(toy.lower(), toy.upper())
    optimizer = sgd()(whole.parameters())
    for client in order.clients:
        data = toy.data(client)
        for _ in range(STEPS):
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(whole(data.inputs), data.labels))
            optimizer.step()
    lower = result.arrays.to_torch_state_dict()
    check_same_tensors("lower segment", whole[0].state_dict(), lower, 1e-12)
    check_same_tensors(
        "upper segment", whole[1].state_dict(), strategy.upper.module.state_dict(), 1e-12
    )
