"""Warnings about clients' data and states, each once a run, in both shapes."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.description import SegmentDescription, SplitDescription
from flwr_splitmix.links.host import ClientHost
from flwr_splitmix.links.local import LocalClients
from flwr_splitmix.runs import Run
from flwr_splitmix.server.steps.round_length import Agreement, RoundLength
from flwr_splitmix.server.warnings.clients import ClientWarnings
from flwr_splitmix.strategies import PSL, USplitSL
from flwr_splitmix.testing.laws import TextToy
from flwr_splitmix.testing.toy import Toy


@pytest.mark.parametrize("averages", [True, False])
def test_a_lost_state_and_an_older_one_are_told_apart(
    averages: bool, caplog: pytest.LogCaptureFixture
) -> None:
    segment = SegmentDescription(prefix=0, patches=4, width=8)
    descriptions = {
        client: SplitDescription(
            num_examples=8, batch_size=4, segment=segment, state_round=state_round
        )
        for client, state_round in {0: 0, 1: 3, 2: 4}.items()
    }
    clients = LocalClients(1, descriptions, {}, None, host=ClientHost())
    warnings = ClientWarnings("lower segment and optimizer", averages=averages)
    agreement = Agreement(2, RoundLength.of(2, None, 1))
    with caplog.at_level(logging.WARNING, "flwr.splitmix"):
        for _ in range(2):
            warnings.on_round(clients, agreement, {0: 4, 1: 4, 2: 4})
    lost, older = caplog.messages
    fresh = "optimizer" if averages else "lower segment and optimizer"
    begins = "client 0 has lost all saved state, so training starts again there with a fresh "
    assert lost.startswith(f"{begins}{fresh} (")
    assert "a SuperNode needs a state-dir that can be written" in lost
    begins = (
        "client 1 has lost the newest saved state, so training continues there from an older one"
    )
    assert older.startswith(f"{begins}: ")


@pytest.mark.parametrize(
    ("shape", "fresh"), [("L", "lower segment and optimizer"), ("U", "head, tail and optimizer")]
)
def test_a_resumed_run_whose_clients_lost_their_states_says_so(
    shape: str, fresh: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server's segment goes on with clients that begin anew, which else only a score shows."""

    def fit(rounds: int, run: Run) -> None:
        toy: Any = Toy(clients=2) if shape == "L" else TextToy(clients=2)
        kind: Any = PSL if shape == "L" else USplitSL
        part = toy.upper() if shape == "L" else toy.server()
        clients = toy.make_clients() if shape == "L" else toy.clients_for()
        kind(part, device="cpu", steps_per_round=1, run=run).fit(clients, rounds)

    run = Run.create({}, name="lost", home=tmp_path)
    fit(1, run)
    shutil.rmtree(run.clients_dir)
    assert "saved state" not in caplog.text
    fit(2, Run.open(run.id, home=tmp_path))
    warning = (
        "clients 0 and 1 have lost all saved state, so training starts again there with a fresh"
    )
    assert f"{warning} {fresh} (" in caplog.text


@pytest.mark.parametrize("shape", ["L", "U"])
def test_sizes_that_differ_are_told_in_both_shapes(
    shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    if shape == "L":
        toy = Toy(clients=3)
        clients: Any = [replace(toy, examples=n).make_clients()[0] for n in (2, 4, 12)]
        strategy: Any = PSL(toy.upper(), device="cpu")
    else:
        texts = TextToy(clients=1)
        clients = [replace(texts, examples=n).clients_for()[0] for n in (2, 4, 12)]
        strategy = USplitSL(texts.server(), device="cpu")
    strategy.fit(clients, 1)
    assert (
        "client 0 has less than one batch of 4: examples are drawn with replacement" in caplog.text
    )
