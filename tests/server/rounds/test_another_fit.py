"""Several calls of `fit`: the same clients continue with what they have learned."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from flwr_splitmix.clients import PrivacyBudget, SplitClient, UShapeClient, exchange
from flwr_splitmix.events import StepDone
from flwr_splitmix.hiding import DPForward
from flwr_splitmix.links import StreamLink
from flwr_splitmix.links.arrays import to_arrays, to_tensors
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.runs import Run
from flwr_splitmix.strategies import (
    DPSL,
    PSL,
    SFL,
    CutMixSL,
    DPForwardSL,
    Pace,
    SplitStrategy,
)
from flwr_splitmix.testing.laws import TextToy
from flwr_splitmix.testing.toy import Toy, sgd
from tests.links.fake_grid import FakeGrid, OnFakeGrid, toy_app


class Plans(Observer):
    """Keeps the plan of every step, as text."""

    def __init__(self) -> None:
        self.plans: list[str] = []

    def on_step(self, event: StepDone) -> None:
        self.plans.append(str(event.plan))


class Began(SplitClient):
    """Writes down which lower segment each round began with."""

    began: list[dict[str, Tensor]]

    def run(self, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if arguments["number"] == 0:
            state = self.segment.state_dict()
            self.began = [*getattr(self, "began", []), {n: t.clone() for n, t in state.items()}]
        return super().run(method, arguments)


@pytest.mark.parametrize("kind", [PSL, SFL])
def test_another_fit_goes_on_with_what_the_same_clients_have_learned(
    kind: type[SplitStrategy],
) -> None:
    toy = Toy()
    strategy = kind(toy.upper(), device="cpu", steps_per_round=2, optimizer=sgd(0.1))
    clients = toy.make_clients(sgd(0.1), kind=Began)
    first = strategy.fit(clients, 2)
    learned = [copy.deepcopy(client.weights()) for client in clients]
    strategy.fit(clients, 1)
    for client, weights in zip(clients, learned, strict=True):
        expected = to_tensors(first.arrays) if kind is SFL else weights
        assert isinstance(client, Began)
        assert all(torch.equal(t, expected[name]) for name, t in client.began[2].items())
    strategy.fit(clients, 1, initial_arrays=first.arrays)
    for client in clients:
        assert isinstance(client, Began)
        assert all(
            torch.equal(t, to_tensors(first.arrays)[name]) for name, t in client.began[3].items()
        )


def test_another_fit_of_the_same_clients_draws_anew_and_repeats() -> None:
    def plans() -> list[Any]:
        toy, watch = Toy(), Plans()
        strategy = CutMixSL(toy.upper(), device="cpu", steps_per_round=2, observers=[watch])
        clients = toy.make_clients(sgd(0.1))
        for _ in range(3):
            strategy.fit(clients, 1)
        return watch.plans

    first = plans()
    assert len(first) == 6
    assert len({str(plan) for plan in first}) == 6
    assert str(plans()) == str(first)


class Drawing(SplitClient):
    """Writes down what each exchange draws, and which examples."""

    drawn: list[float]
    examples: list[int]

    def run(self, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        reply = super().run(method, arguments)
        self.examples = [*getattr(self, "examples", []), *self.batches.indices.tolist()]
        return reply

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        self.drawn = [*getattr(self, "drawn", []), float(torch.rand(()))]
        return super().step(**arguments)


def test_another_fit_of_the_same_clients_draws_other_dropout_from_where_it_was() -> None:
    """Otherwise every fit would have the dropout masks of the first."""

    def drawn(*rounds: int) -> tuple[list[float], list[int]]:
        toy = Toy()
        strategy = PSL(toy.upper(), device="cpu", steps_per_round=2)
        client, *_ = clients = toy.make_clients(sgd(0.1), kind=Drawing)
        for number in rounds:
            strategy.fit(clients, number)
        assert isinstance(client, Drawing)
        return client.drawn, client.examples

    thrice, examples = drawn(1, 1, 1)
    assert len(set(thrice)) == len(thrice) == 3 * 3  # the last gradients are an exchange, too
    assert drawn(1, 1, 1)[0] == thrice
    in_one, of_one = drawn(3)
    assert in_one[:3] == thrice[:3]
    assert of_one == examples


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", [PSL, SFL])
def test_a_fit_after_one_that_was_interrupted_goes_on_with_what_was_learned(
    kind: type[SplitStrategy], error: type[BaseException]
) -> None:
    """Client 0's lower segment must not replace those of all others."""

    def stop(server_round: int, arrays: ArrayRecord) -> None:
        if server_round == 2:
            averages.append(to_tensors(arrays))
            raise error("stop")

    toy, averages = Toy(), list[dict[str, Tensor]]()
    strategy = kind(toy.upper(), device="cpu", steps_per_round=2, optimizer=sgd(0.1))
    clients = toy.make_clients(sgd(0.1), kind=Began)
    with pytest.raises(error):
        strategy.fit(clients, 3, evaluate_fn=stop)
    learned = [copy.deepcopy(client.weights()) for client in clients]
    strategy.fit(clients, 1)
    for client, weights in zip(clients, learned, strict=True):
        assert isinstance(client, Began)
        expected = averages[0] if kind is SFL else weights
        assert all(torch.equal(t, expected[name]) for name, t in client.began[-1].items())


def test_clients_may_start_from_their_own_lower_segments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def began(**options: Any) -> list[bool]:
        toy = Toy()
        clients = toy.make_clients(sgd(0.1), kind=Began)
        for number, client in enumerate(clients):
            with torch.no_grad():
                for weights in client.segment.parameters():
                    weights.add_(number)
        originals = [copy.deepcopy(client.weights()) for client in clients]
        caplog.clear()
        PSL(toy.upper(), device="cpu", steps_per_round=1).fit(clients, 1, **options)
        return [
            all(torch.equal(t, original[name]) for name, t in client.began[0].items())
            for client, original in zip(clients, originals, strict=True)
            if isinstance(client, Began)
        ]

    assert began(initial_arrays=ArrayRecord()) == [True] * 5
    assert "client 0's" not in caplog.text
    assert began() == [True] + [False] * 4
    assert "all clients start from client 0's weights, which replace theirs" in caplog.text


class Interrupts(Observer):
    """Interrupts the first step that it sees."""

    def __init__(self) -> None:
        self.waits = True

    def on_step(self, event: StepDone) -> None:
        waits, self.waits = self.waits, False
        if waits:
            raise KeyboardInterrupt


@pytest.mark.parametrize("same", [True, False])
def test_other_clients_do_not_pay_for_rounds_that_earlier_ones_began(same: bool) -> None:
    """They would charge themselves for batches that they have not sent."""

    def make() -> Sequence[SplitClient]:
        return toy.make_clients(privacy=PrivacyBudget(), repeatable_secrets=False)

    def spent(*, interrupted: bool) -> list[float | None]:
        watch = Interrupts()
        watch.waits = interrupted
        noise = GaussianNoise(sigma_s=20.0, sigma_y=20.0)
        strategy = DPSL(toy.upper(), device="cpu", noise=noise, observers=[watch])
        clients = make()
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                strategy.fit(clients, 1)
        clients = clients if same else make()
        strategy.fit(clients, 1)
        return [client.epsilon for client in clients]

    toy = Toy(clients=2, batch_norm=False)
    once, twice = spent(interrupted=False), spent(interrupted=True)
    assert None not in once
    assert (twice == once) is not same


def test_a_client_that_failed_leaves_no_infinite_epsilon_to_others() -> None:
    class Fails(UShapeClient):
        @exchange
        def encode(self, **arguments: Any) -> dict[str, Any]:
            raise ValueError("no")

    toy = TextToy(clients=2, hiding=DPForward)
    strategy = DPForwardSL(toy.server(), device="cpu")
    failing = TextToy(clients=1, hiding=DPForward, kind=Fails).clients_for()
    strategy.fit([*toy.clients_for(), *failing], 1)
    assert strategy.rows[-1]["train_epsilon"] == math.inf
    clients = toy.clients_for()
    strategy.fit(clients, 1)
    assert strategy.rows[-1]["train_epsilon"] == max(c.epsilon or math.inf for c in clients)


def test_how_fast_clients_are_is_forgotten_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others must not be grouped by the speeds of those that had their indices before."""
    toy, counts = Toy(clients=4), list[int]()
    strategy = CutMixSL(toy.upper(), device="cpu", pace=Pace(grouping="speed"))
    group_within = strategy.mixer.group_within

    def group(classes: Mapping[int, int]) -> None:
        counts.append(len(classes))
        group_within(classes)

    monkeypatch.setattr(strategy.mixer, "group_within", group)
    clients = toy.make_clients()
    for participants in (clients, clients, toy.make_clients()):
        strategy.fit(participants, 1)
    assert counts == [0, 4, 0]


def test_the_number_of_parts_is_chosen_anew_for_other_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    toy = Toy(clients=2, batch_norm=False)
    strategy = PSL(toy.upper(), device="cpu", server_update="mean", micro_batches=3)
    clients, warned = toy.make_clients(), list[bool]()
    for participants in (clients, clients, toy.make_clients()):
        caplog.clear()
        strategy.fit(participants, 1)
        warned.append("micro-batches is 3, which does not divide a batch of 4" in caplog.text)
    assert warned == [True, False, True]


def resumed(
    kind: type[SplitStrategy], home: Path, rounds: int, toy: Toy, *, new: bool = False
) -> tuple[SplitStrategy, Sequence[SplitClient]]:
    """Fit new clients on a new run, or on the one that is there."""
    run = Run.create({}, name="run", home=home) if new else Run.open("latest", home=home)
    clients = toy.make_clients(sgd(0.1))
    strategy = kind(
        toy.upper(), device="cpu", steps_per_round=1, fraction_train=0.4, optimizer=sgd(0.1),
        run=run,
    )  # fmt: skip
    strategy.fit(clients, rounds)
    return strategy, clients


def same_weights(one: SplitClient, other: SplitClient) -> bool:
    others = other.weights()
    return all(torch.equal(tensor, others[name]) for name, tensor in one.weights().items())


@pytest.mark.parametrize("kind", [PSL, SFL])
def test_a_fit_that_resumes_leaves_all_clients_trained(
    kind: type[SplitStrategy], tmp_path: Path
) -> None:
    """Clients that no round asks again do not keep their initial weights."""
    toy = Toy()
    _, trained = resumed(kind, tmp_path, 4, toy, new=True)
    assert not all(map(same_weights, trained, toy.make_clients()))
    _, again = resumed(kind, tmp_path, 4, toy)
    assert all(map(same_weights, again, trained))
    strategy, longer = resumed(kind, tmp_path, 5, toy)
    unasked = [index for index, last in strategy.last_trained_round.items() if last < 5]
    assert unasked
    assert all(same_weights(longer[index], trained[index]) for index in unasked)


def test_a_resumed_run_without_a_round_left_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`flwr run` ends at once with exit status 0, so the log must tell why."""
    message = "the run has finished its 4 rounds, and nothing is left to do: raise num_rounds"
    resumed(PSL, tmp_path, 4, Toy(), new=True)
    assert message not in caplog.text
    resumed(PSL, tmp_path, 4, Toy())
    assert message in caplog.text


def test_a_client_that_its_state_does_not_fit_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resumed(PSL, tmp_path, 4, Toy(), new=True)
    clients = Toy(width=4).make_clients(sgd(0.1))
    run = Run.open("latest", home=tmp_path)
    PSL(Toy().upper(), device="cpu", optimizer=sgd(0.1), run=run).fit(clients, 4)
    assert "client 1 is not as the run left it: " in caplog.text


@pytest.mark.usefixtures("outside_of_a_run")
def test_a_start_after_a_fit_takes_the_link_that_was_given() -> None:
    """It does not go on with the clients of the fit, in this process."""
    toy = Toy(clients=2)
    grid = FakeGrid(toy_app(toy), toy.clients)
    link = OnFakeGrid(StreamLink(address="127.0.0.1:0"), grid)
    strategy = SFL(toy.upper(), device="cpu", optimizer=sgd(0.1), link=link)
    strategy.fit(toy.make_clients(sgd(0.1)), 1)
    assert not grid.sent
    strategy.start(None, to_arrays(toy.lower().state_dict()), 1)  # type: ignore[arg-type]
    assert {message.metadata.message_type for message in grid.sent} >= {"query", "train"}
