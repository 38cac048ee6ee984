"""A run whose client the node's ledger does not count leaves no epsilon to later runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context
from torch import Tensor

from flwr_splitmix.clients import Client, Order, exchange
from flwr_splitmix.hiding import DPForward, Hiding
from flwr_splitmix.privacy.journal import read_journal
from flwr_splitmix.testing.laws import TextToy
from tests.links.node.worst_server import Node, noisy


class Echo(Client):
    """A client of a user's own, which sends its data as they are."""

    def weights(self) -> dict[str, Tensor]:
        return {}

    def attach(self, order: Order, arrays: Any) -> dict[str, Any]:
        self._order = order
        return {"num-examples": 3}

    @exchange
    def tell(self) -> dict[str, Any]:
        return {"data": torch.ones(3)}

    def release(self) -> tuple[dict[str, Tensor], dict[str, int | float]]:
        return {}, {"num-examples": 3}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {}

    def restore(self, tensors: Any, meta: Any) -> None:
        pass


class OtherNode(Node):
    """A node whose client is not of the L shape."""

    def __init__(self, folder: Path, make: Callable[[], Client]) -> None:
        super().__init__(folder)
        self.make = make

    def _client(self, context: Context) -> Client:
        return self.make()


def u_shaped(hiding: type[Hiding]) -> Callable[[], Client]:
    return lambda: TextToy(clients=1, hiding=hiding, tests=4).clients_for()[0]


STEP = "encode", {"number": 0, "progress": 0.0, "gradient": None}
TESTS = "encode_test", {"kind": "federated", "start": 0, "stop": 4}


@pytest.mark.parametrize(
    ("make", "exchange"),
    [
        (u_shaped(Hiding), STEP),
        (u_shaped(Hiding), TESTS),
        (u_shaped(DPForward), STEP),
        (Echo, ("tell", {})),
    ],
    ids=["plain", "tests", "noisy", "own"],
)
def test_nothing_is_sent_under_a_limit_after_it(
    tmp_path: Path, make: Callable[[], Client], exchange: tuple[str, dict[str, Any]]
) -> None:
    """It left no ledger at all: images sent plain in the U shape cost 0.687 in the L shape."""
    first = OtherNode(tmp_path, make)
    first.begin(run="first")
    method, arguments = exchange
    assert first.ask(method, **arguments).reply is not None
    first.end(finish=False)
    later = Node(tmp_path, {"max-epsilon": 8.0})
    later.begin(run="later")
    assert later.step([noisy()]).reply == {"budget-spent": True}
    assert later.client.epsilon == math.inf
    later.end(finish=False)


def test_it_is_noted_once_in_all_runs_and_only_if_the_client_is_asked(tmp_path: Path) -> None:
    node = OtherNode(tmp_path, u_shaped(Hiding))
    ledger = tmp_path / "privacy-ledger-0.jsonl"
    for run in ("first", "second"):
        node.begin(run=run)
        node.end(finish=False)
    assert not ledger.exists()
    for number, run in enumerate(("first", "first", "second")):
        node.begin(run=run)
        assert node.ask(STEP[0], **{**STEP[1], "number": number}).reply is not None
        node.end(finish=False)
    assert [entry.get("notes") for entry in read_journal(ledger)].count(["unledgered"]) == 1


def test_it_stops_a_run_of_which_a_part_has_been_sent(tmp_path: Path) -> None:
    """A node's processes of two runs take turns."""
    counted = Node(tmp_path, {"max-epsilon": 8.0})
    counted.begin(run="counted")
    assert "budget-spent" not in (counted.step([noisy()]).reply or {})
    other = OtherNode(tmp_path, u_shaped(Hiding))
    other.begin(run="other")
    assert other.ask(STEP[0], **STEP[1]).reply is not None
    other.end(finish=False)
    assert counted.step([noisy()], 1).reply == {"budget-spent": True}
    counted.end(finish=False)
