"""Frozen segments: they do not change, others learn by them, and if all are, the log says so."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import get_args

import pytest
import torch
from torch import Tensor

from flwr_splitmix.server.segments.upper import ServerUpdate
from flwr_splitmix.strategies import PSL, USplitSL
from flwr_splitmix.testing.laws import TextToy
from flwr_splitmix.testing.toy import Toy


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    ("update", "parts"),
    [*((update, 1) for update in get_args(ServerUpdate)), ("sum", 2), ("mean", 2)],
)
def test_a_frozen_upper_segment_serves_two_clients(update: ServerUpdate, parts: int) -> None:
    """There is no gradient to take a mean of, also with server_update "mean"."""
    toy = Toy(clients=2, batch_norm=False)
    upper = toy.upper().requires_grad_(False)
    strategy = PSL(upper, device="cpu", server_update=update, micro_batches=parts)
    clients = toy.make_clients()
    upper_before, before = deepcopy(upper.state_dict()), deepcopy(clients[1].weights())
    strategy.fit(clients, 1)
    assert strategy.rows[-1]["clients_failed"] == 0
    assert same(upper.state_dict(), upper_before)
    assert not same(clients[1].weights(), before)


def test_a_frozen_trunk_serves_two_clients() -> None:
    """There is no gradient to take a mean of."""
    toy = TextToy(clients=2)
    trunk = toy.server().requires_grad_(False)
    strategy = USplitSL(trunk, device="cpu")
    clients = toy.clients_for(strategy)
    trunk_before, before = deepcopy(trunk.state_dict()), deepcopy(clients[1].weights())
    strategy.fit(clients, 1)
    assert strategy.rows[-1]["clients_failed"] == 0
    assert same(trunk.state_dict(), trunk_before)
    assert not same(clients[1].weights(), before)


@pytest.mark.parametrize("frozen", ["upper", "lower", "both"])
def test_if_no_part_of_the_l_shape_learns_it_is_told_once(
    frozen: str, caplog: pytest.LogCaptureFixture
) -> None:
    toy = Toy(clients=2, batch_norm=False)
    strategy = PSL(toy.upper().requires_grad_(frozen == "lower"), device="cpu")
    clients = toy.make_clients()
    for client in clients:
        client.segment.requires_grad_(frozen == "upper")
    strategy.fit(clients, 2)
    warning = (
        "nothing is trained: the upper segment and the clients' lower segments have no weights"
    )
    assert caplog.text.count(warning) == (frozen == "both")


@pytest.mark.parametrize("learns", ["head", "trunk", "tail", ""])
def test_if_no_part_of_the_u_shape_learns_it_is_told_once(
    learns: str, caplog: pytest.LogCaptureFixture
) -> None:
    toy = TextToy(clients=2)
    strategy = USplitSL(toy.server().requires_grad_(learns == "trunk"), device="cpu")
    clients = toy.clients_for(strategy)
    for client in clients:
        client.head.requires_grad_(learns == "head")
        client.tail.requires_grad_(learns == "tail")
    strategy.fit(clients, 2)
    warning = "nothing is trained: the trunk and the clients' heads and tails have no weights, or"
    assert caplog.text.count(warning) == (not learns)
