"""Warnings about clients' states say what became of them."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from flwr_splitmix.mixers import SmashedShape
from flwr_splitmix.server.remarks import Remarks
from flwr_splitmix.strategies import PSL, CutMixSL
from flwr_splitmix.testing.toy import Toy


@pytest.mark.parametrize("averages", [True, False])
def test_a_lost_state_and_an_older_one_are_told_apart(
    averages: bool, caplog: pytest.LogCaptureFixture
) -> None:
    toy = Toy(clients=3)
    strategy = PSL(toy.upper(), device="cpu")
    states = {0: 0, 1: 3, 2: 4}
    described = {c: {"num-examples": 8, "state-round": done} for c, done in states.items()}
    clients: Any = SimpleNamespace(alive=[0, 1, 2], descriptions=described)
    shape = SmashedShape(batch=4, patches=4, width=8)
    remarks = Remarks()
    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        for _ in range(2):
            trained = {0: 4, 1: 4, 2: 4}
            remarks.on_clients(clients, strategy.mixer, shape, 2, trained, averages=averages)
    lost, older = (record.getMessage() for record in caplog.records)
    anew = "its optimizer" if averages else "its lower segment and its optimizer"
    assert lost.startswith(f"client 0 has lost the state that it had and begins anew {anew} (")
    assert "a SuperNode needs a state-dir that can be written" in lost
    assert older.startswith("client 1 has lost its newest state and goes on from an older one: ")


def test_prefix_tokens_have_seen_the_image_only_behind_a_block(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Own segments may be cut at the embedding, where a class token has seen nothing."""
    described = {c: {"num-examples": 8, "state-round": 0} for c in range(2)}
    clients: Any = SimpleNamespace(alive=[0, 1], descriptions=described)
    mixer = CutMixSL(Toy().upper(), device="cpu").mixer
    shape = SmashedShape(batch=4, patches=4, width=8, prefix=1)
    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        Remarks().on_clients(clients, mixer, shape, 2, {}, averages=True)
    assert caplog.messages == [
        "each of clients 0, 1 sends 1 prefix token of every image, which have attended to all "
        "of it if the model is cut at a block: they are summed with the others', not masked"
    ]
