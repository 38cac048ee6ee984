"""A client without data: named once, asked once, in no round's failures, and in the summary."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix import Run
from flwr_splitmix.clients import NO_DATA, ClientError, Order, SplitClient
from flwr_splitmix.schedule import constant
from flwr_splitmix.server.without_data import WithoutData
from flwr_splitmix.strategies import PSL
from flwr_splitmix.testing.toy import sgd
from tests.laws.makers import toy_for


class Empty(SplitClient):
    """Stands for a node whose client cannot be built, for want of data."""

    asked = 0

    def attach(self, order: Order, arrays: Mapping[str, Any] | None) -> dict[str, Any]:
        type(self).asked += 1
        raise ClientError(NO_DATA)


@pytest.fixture
def asked() -> type[Empty]:
    Empty.asked = 0
    return Empty


def test_it_is_counted_once(
    asked: type[Empty], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toy = toy_for("PSL")
    clients = list(toy.make_clients(sgd(0.1)))
    clients[1] = toy.make_clients(sgd(0.1), kind=asked)[1]
    run = Run.create({}, name="toy", home=tmp_path)
    strategy = PSL(
        toy.upper(), optimizer=sgd(0.1), schedule=constant, device="cpu", steps_per_round=1, run=run
    )
    caplog.set_level(logging.WARNING, "flwr.splitmix")
    strategy.fit(clients, 3)
    assert asked.asked == 1
    assert [row["clients_failed"] for row in run.rows] == [0, 0, 0]
    assert {row["clients_alive"] for row in run.rows} == {len(clients) - 1}
    assert run.summary is not None
    assert run.summary["clients_without_data"] == 1
    said = [record.getMessage() for record in caplog.records if "data" in record.getMessage()]
    assert said == [
        "client 1: no training data, so it takes no part in this run and is not asked again"
    ]


def test_a_run_knows_nothing_of_another_runs_clients(
    asked: type[Empty], caplog: pytest.LogCaptureFixture
) -> None:
    toy = toy_for("PSL")
    clients = list(toy.make_clients(sgd(0.1)))
    clients[1] = toy.make_clients(sgd(0.1), kind=asked)[1]
    strategy = PSL(
        toy.upper(), optimizer=sgd(0.1), schedule=constant, device="cpu", steps_per_round=1
    )
    strategy.fit(clients, 2)
    caplog.clear()
    caplog.set_level(logging.WARNING, "flwr.splitmix")
    strategy.fit(toy.make_clients(sgd(0.1)), 1)
    assert sorted(strategy.trained) == list(range(len(clients)))
    assert caplog.messages == []  # in particular, no client has lost its state


def test_other_failures_stay_failures() -> None:
    known = WithoutData()
    reasons = {0: "the battery is empty", 2: f"client_fn raised ClientError: {NO_DATA}"}
    assert known.failures(reasons, attached=()) == {0: "the battery is empty"}
    assert known.asked([3, 2, 0]) == [0, 3]
    assert known.facts == {"clients_without_data": 1}


def test_a_client_that_took_part_has_data_whatever_it_says() -> None:
    """It may have sent uploads, which a failure leaves charged."""
    known = WithoutData()
    reasons = {2: NO_DATA}
    assert known.failures(reasons, attached={2: {}}) == reasons
    assert known.asked([2]) == [2]
