"""The time that a run has taken, and the time that it will take."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import Toy


def test_the_time_between_two_fits_of_a_run_is_not_counted(tmp_path: Path) -> None:
    toy = Toy(clients=2)
    run = Run.create({}, name="psl", home=tmp_path)
    strategy = PSL(toy.upper(), run=run, device="cpu", checkpoint_every=1)
    strategy.fit(toy.make_clients(), 1)
    assert run.summary is not None
    first = run.summary["wall_s"]
    time.sleep(3)
    strategy.fit(toy.make_clients(), 2)
    assert first <= run.summary["wall_s"] < first + 3


def test_the_time_left_is_estimated_without_the_start_up(caplog: pytest.LogCaptureFixture) -> None:
    """If it counted, every round would seem as long as start-up and round together."""

    class Slow(PSL):
        def configure_train(self, server_round: int, *arguments: Any) -> Iterable[Message]:
            time.sleep(float(server_round == 1))
            return super().configure_train(server_round, *arguments)

    toy = Toy(clients=2, tests=0)
    with caplog.at_level("INFO", logger="flwr.splitmix"):
        Slow(toy.upper(), device="cpu", steps_per_round=1).fit(toy.make_clients(), 21)
    first = next(line for line in caplog.messages if line.startswith("round 1/21 |"))
    match = re.search(r"\| (\d+) s left", first)
    assert match is not None, first
    assert int(match[1]) < 10
