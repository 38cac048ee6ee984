"""A client without data: named once, asked once, in no round's failures, and in the summary."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import MessageType, RecordDict

from flwr_splitmix import Run
from flwr_splitmix.clients import NO_DATA, ClientError, Order, SplitClient
from flwr_splitmix.events import RoundBegun, StepDone
from flwr_splitmix.links import LinkError
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.schedule import constant
from flwr_splitmix.server.messages import messages_to, with_tickets
from flwr_splitmix.server.nodes.without_data import WithoutData
from flwr_splitmix.strategies import PSL, CutMixSL, DPMixSL
from flwr_splitmix.testing.toy import Toy, sgd
from tests.laws.makers import toy_for


class Empty(SplitClient):
    """Stands for a node whose client cannot be built, for want of data."""

    attempts = 0

    def attach(self, order: Order, arrays: Mapping[str, Any] | None) -> dict[str, Any]:
        type(self).attempts += 1
        raise ClientError(NO_DATA)


@pytest.fixture
def kind() -> type[Empty]:
    Empty.attempts = 0
    return Empty


def test_it_is_counted_once(
    kind: type[Empty], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toy = toy_for("PSL")
    clients = list(toy.make_clients(sgd(0.1)))
    clients[1] = toy.make_clients(sgd(0.1), kind=kind)[1]
    run = Run.create({}, name="toy", home=tmp_path)
    strategy = PSL(
        toy.upper(), optimizer=sgd(0.1), schedule=constant, device="cpu", steps_per_round=1, run=run
    )
    caplog.set_level(logging.WARNING, "flwr.splitmix")
    strategy.fit(clients, 3)
    assert kind.attempts == 1
    assert [row["clients_failed"] for row in run.rows] == [0, 0, 0]
    assert {row["clients_alive"] for row in run.rows} == {len(clients) - 1}
    assert run.summary is not None
    assert run.summary["clients_without_data"] == 1
    messages = [record.getMessage() for record in caplog.records if "data" in record.getMessage()]
    assert messages == ["client 1 has no training data and is not asked again in this run"]


class Groups(Observer):
    """Keeps the sizes of every step's mixing groups."""

    def __init__(self) -> None:
        self.sizes: list[list[int]] = []

    def on_step(self, event: StepDone) -> None:
        assert event.plan is not None
        self.sizes.append([len(group.members) for each in event.plan.passes for group in each])


def test_groups_are_smaller_without_them(
    kind: type[Empty], caplog: pytest.LogCaptureFixture
) -> None:
    """The second round, which does not ask them, does not end a run whose first one trains."""
    toy, groups = Toy(clients=4), Groups()
    clients = [*toy.make_clients(sgd(0.1))[:2], *toy.make_clients(sgd(0.1), kind=kind)[2:]]
    strategy = CutMixSL(
        toy.upper(), k=3, device="cpu", steps_per_round=1, observers=[groups], evaluation="none"
    )
    caplog.set_level(logging.WARNING, "flwr.splitmix")
    strategy.fit(clients, 3)
    assert groups.sizes == [[2], [2], [2]]
    messages = [record.getMessage() for record in caplog.records if "groups" in record.getMessage()]
    assert messages == [
        "round 1 continues in smaller mixing groups than asked for: k is 3, but only 2 clients "
        "take part in a round; use 2. Later rounds may, too, down to 2 clients"
    ]
    with pytest.raises(ValueError, match="k is 3, but only 2 clients take part"):
        strategy.fit(clients[:2], 1)


def test_a_run_that_went_on_in_smaller_groups_is_resumed_in_them(tmp_path: Path) -> None:
    toy, run = Toy(clients=3), Run.create({}, name="toy", home=tmp_path)
    for clients, rounds in ((3, 1), (2, 2)):
        strategy = CutMixSL(toy.upper(), k=3, device="cpu", steps_per_round=1, run=run)
        strategy.fit(toy.make_clients(sgd(0.1))[:clients], rounds)
        run = Run.open(run.id, home=tmp_path)
    assert [row["clients_alive"] for row in run.rows] == [3, 2]


def test_each_run_says_that_its_groups_are_smaller(
    kind: type[Empty], caplog: pytest.LogCaptureFixture
) -> None:
    toy = Toy(clients=4)
    strategy = CutMixSL(toy.upper(), k=3, device="cpu", steps_per_round=1, evaluation="none")
    caplog.set_level(logging.WARNING, "flwr.splitmix")
    for _ in range(2):
        caplog.clear()
        empty = toy.make_clients(sgd(0.1), kind=kind)[2:]
        strategy.fit([*toy.make_clients(sgd(0.1))[:2], *empty], 2)
        assert caplog.text.count("round 1 continues in smaller mixing groups") == 1


def test_smaller_groups_cost_what_groups_of_their_size_cost(kind: type[Empty]) -> None:
    def spent(k: int, clients: int) -> list[float]:
        toy = Toy(clients=clients, batch_norm=False)
        strategy = DPMixSL(
            toy.upper(), k=k, noise=GaussianNoise(sigma_s=3.0, sigma_y=3.0), trusted_mixer=True,
            device="cpu", steps_per_round=1,
        )  # fmt: skip
        empty = toy.make_clients(sgd(0.1), kind=kind)[2:]
        strategy.fit([*toy.make_clients(sgd(0.1))[:2], *empty], 2)
        assert strategy.ledger is not None
        epsilons = [ledger.statement(1e-5).epsilon for ledger in strategy.ledger.ledgers.values()]
        assert all(0 < epsilon < math.inf for epsilon in epsilons)
        return epsilons

    assert spent(3, 4) == spent(2, 2)


def test_a_run_knows_nothing_of_another_runs_clients(
    kind: type[Empty], caplog: pytest.LogCaptureFixture
) -> None:
    toy = toy_for("PSL")
    clients = list(toy.make_clients(sgd(0.1)))
    clients[1] = toy.make_clients(sgd(0.1), kind=kind)[1]
    strategy = PSL(
        toy.upper(), optimizer=sgd(0.1), schedule=constant, device="cpu", steps_per_round=1
    )
    strategy.fit(clients, 2)
    caplog.clear()
    caplog.set_level(logging.WARNING, "flwr.splitmix")
    strategy.fit(toy.make_clients(sgd(0.1)), 1)
    assert sorted(strategy.last_trained_round) == list(range(len(clients)))
    (message,) = caplog.messages  # in particular, no client is said to have lost its state
    assert "has learned in an earlier run of this PSL" in message


@pytest.mark.parametrize("seed", range(4))
def test_others_are_drawn_in_their_place(kind: type[Empty], seed: int) -> None:
    """With small samples, rounds that draw one would lack a partner, and end the run."""
    toy = Toy(clients=6)
    clients: list[SplitClient] = list(toy.make_clients(sgd(0.1)))
    for empty in (1, 3):
        clients[empty] = toy.make_clients(sgd(0.1), kind=kind)[empty]
    strategy = CutMixSL(
        toy.upper(), k=2, device="cpu", steps_per_round=1, evaluation="none", fraction_train=0.4,
        seed=seed,
    )  # fmt: skip
    strategy.fit(clients, 8)
    assert [row["clients_alive"] for row in strategy.rows] == [2] * 8
    assert kind.attempts <= 2


def test_a_run_in_which_nobody_has_data_ends_with_the_reason(kind: type[Empty]) -> None:
    toy = Toy(clients=4)
    strategy = PSL(toy.upper(), device="cpu", fraction_train=0.25)
    with pytest.raises(LinkError, match=f"round 1: 0 clients are left.*client .: {NO_DATA}"):
        strategy.fit(toy.make_clients(sgd(0.1), kind=kind), 2)
    assert kind.attempts == 4


def test_a_resumed_run_draws_the_same_clients(kind: type[Empty], tmp_path: Path) -> None:
    """It knows who has no data, as the run did that was not interrupted."""

    def alive(home: Path, *parts: int) -> list[list[int]]:
        run, drawn = Run.create({}, name="toy", home=home), Drawn()
        for rounds in parts:
            toy = Toy(clients=6)
            clients: list[SplitClient] = list(toy.make_clients(sgd(0.1)))
            clients[3] = toy.make_clients(sgd(0.1), kind=kind)[3]
            strategy = PSL(
                toy.upper(), device="cpu", steps_per_round=1, fraction_train=0.5, run=run,
                observers=[drawn],
            )  # fmt: skip
            strategy.fit(clients, rounds)
            run = Run.open(run.id, home=home)
        return drawn.nodes

    assert alive(tmp_path / "parts", 2, 6) == alive(tmp_path / "whole", 6)


def test_a_resumed_run_names_whom_it_does_not_ask(
    kind: type[Empty], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever gives a node its data meanwhile must see that it takes no part."""
    toy = Toy(clients=3)
    run = Run.create({}, name="toy", home=tmp_path)
    for rounds in (1, 2):
        caplog.clear()
        clients: list[SplitClient] = list(toy.make_clients(sgd(0.1)))
        if rounds == 1:
            clients[2] = toy.make_clients(sgd(0.1), kind=kind)[2]
        PSL(toy.upper(), device="cpu", steps_per_round=1, run=run).fit(clients, rounds)
        run = Run.open(run.id, home=tmp_path)
    messages = [
        record.getMessage()
        for record in caplog.records
        if "no training data" in record.getMessage()
    ]
    assert messages == [
        "client 2 had no training data when asked before and is not asked now that the run is "
        "resumed; if there are data now, begin a new run"
    ]


@pytest.mark.parametrize("seed", range(3))
def test_evaluations_draw_others_in_their_place_too(
    kind: type[Empty], seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An evaluation that draws only such clients would have no score, in every round anew."""
    toy = Toy(clients=5, tests=6)
    clients: list[SplitClient] = list(toy.make_clients(sgd(0.1), kind=kind))
    clients[3] = toy.make_clients(sgd(0.1))[3]
    strategy = PSL(
        toy.upper(), device="cpu", steps_per_round=1, evaluation="federated", fraction_train=0.2,
        seed=seed,
    )  # fmt: skip
    caplog.set_level(logging.WARNING, "flwr.splitmix")
    strategy.fit(clients, 4)
    assert all(row["accuracy"] is not None for row in strategy.rows)
    assert kind.attempts == 4
    messages = [record.getMessage() for record in caplog.records]
    assert sum(message.count("not asked again in this run") for message in messages) <= 4


class AsksTheSame(PSL):
    """Evaluates with the clients 1 and 2, whoever has data."""

    calls = 0

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        self.calls += 1
        directory = self.run_state.link.directory(grid, 1)
        nodes = {client: directory[client] for client in (1, 2)}
        content = RecordDict({"arrays": arrays, "config": config})
        messages = messages_to(
            list(nodes.values()), content, MessageType.EVALUATE, in_run=grid is not None
        )
        ticket_of = self._tickets(server_round, server_round)
        return with_tickets(messages, nodes, ticket_of, lambda _: {"attempt": 0})


def test_who_names_the_clients_of_an_evaluation_is_not_asked_for_others(
    kind: type[Empty], caplog: pytest.LogCaptureFixture
) -> None:
    """An own configure_evaluate is called once, and its clients are reported once."""
    toy = Toy(clients=4, tests=6)
    clients: list[SplitClient] = list(toy.make_clients(sgd(0.1), kind=kind))
    for index in (0, 3):
        clients[index] = toy.make_clients(sgd(0.1))[index]
    strategy = AsksTheSame(
        toy.upper(), device="cpu", steps_per_round=1, evaluation="federated", fraction_train=0.25
    )
    caplog.set_level(logging.WARNING, "flwr.splitmix")
    strategy.fit(clients, 2)
    assert strategy.calls == 2
    for client in (1, 2):
        assert caplog.text.count(f"client {client} has no training data") == 1


class Lost(SplitClient):
    """Attaches for training, and not for an evaluation."""

    def attach(self, order: Order, arrays: Mapping[str, Any] | None) -> dict[str, Any]:
        if self.trained_in:
            raise ClientError("the disk is gone")
        return super().attach(order, arrays)

    trained_in = False

    def release(self) -> Any:
        self.trained_in = True
        return super().release()


def test_what_is_drawn_again_is_named(kind: type[Empty], caplog: pytest.LogCaptureFixture) -> None:
    """An evaluation that is drawn again is not called the round, which is not."""
    toy = Toy(clients=3, tests=6)
    clients: list[SplitClient] = list(toy.make_clients(sgd(0.1), kind=Lost))
    clients[2] = toy.make_clients(sgd(0.1), kind=kind)[2]
    for seed in range(8):
        strategy = PSL(
            toy.upper(), device="cpu", steps_per_round=1, evaluation="federated", min_nodes=1,
            fraction_train=0.67, seed=seed,
        )  # fmt: skip
        caplog.set_level(logging.WARNING, "flwr.splitmix")
        for client in clients[:2]:
            vars(client).pop("trained_in", None)
        strategy.fit(clients, 1)
    again = [m for m in caplog.messages if "is drawn again" in m]
    assert again
    assert all(m.startswith("the evaluation of round 1 is drawn again: client ") for m in again)


def test_an_evaluation_to_which_nobody_attaches_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """It leaves no score."""
    toy = Toy(clients=2, tests=6)
    strategy = PSL(toy.upper(), device="cpu", steps_per_round=1, evaluation="federated")
    caplog.set_level(logging.WARNING, "flwr.splitmix")
    strategy.fit(toy.make_clients(sgd(0.1), kind=Lost), 1)
    assert strategy.rows[0]["accuracy"] is None
    assert "nothing was evaluated: clients 0 and 1: the disk is gone" in caplog.text


class Drawn(Observer):
    """Keeps who attached to each round."""

    def __init__(self) -> None:
        self.nodes: list[list[int]] = []

    def on_begin(self, event: RoundBegun) -> None:
        self.nodes.append(sorted(event.nodes))


def test_other_failures_stay_failures() -> None:
    without_data = WithoutData()
    reasons = {0: "the battery is empty", 2: f"client_fn raised ClientError: {NO_DATA}"}
    assert without_data.failures(reasons, attached=()) == {0: "the battery is empty"}
    assert without_data.clients == {2}
    assert without_data.facts == {"clients_without_data": 1}


def test_a_client_that_took_part_has_data_whatever_it_says() -> None:
    """It may have sent uploads, which a failure leaves charged."""
    without_data = WithoutData()
    reasons = {2: NO_DATA}
    assert without_data.failures(reasons, attached={2: {}}) == reasons
    assert without_data.clients == set()
