"""A client that fails round after round: what ledgers say of it, whatever an adversary makes fail.

Its process may live on or begin again from what was saved last, at each round; it may fail before
it draws a batch, before it sends it, or after. So a server may have more than it knows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.clients import SplitClient, exchange
from flwr_splitmix.clients.guards.privacy_budget import PrivacyBudget
from flwr_splitmix.data.examples import Example
from flwr_splitmix.description import read_description
from flwr_splitmix.events import Exchange, RoundBegun, RoundDone
from flwr_splitmix.links.host import ClientHost
from flwr_splitmix.links.ticket import Ticket
from flwr_splitmix.mixers import FullShare, NoisyShare
from flwr_splitmix.observers import PrivacyLedger, UnfinishedRounds
from flwr_splitmix.runs.checkpoints import ClientStore
from flwr_splitmix.strategies import DPSL
from flwr_splitmix.testing.toy import Toy, sgd
from tests.strategies.noise.honest import (
    DELTA,
    E_S,
    E_Y,
    NOISE,
    Honest,
    Sent,
    check_order,
    epsilon,
    noised,
    run,
    truth,
)

ONE = Toy(clients=1, batch_norm=False)
SHARE = NoisyShare.around(FullShare(), NOISE, ONE.classes)


class Failing(Honest):
    """Fails when it is told to: before it draws a batch, or when it has drawn one."""

    fails = ""

    @exchange
    def step(self, **arguments: Any) -> dict[str, Any]:
        if self.fails == "before":
            raise RuntimeError("no")
        return super().step(**arguments)

    def batch(self, number: int) -> Example:
        drawn = super().batch(number)
        if self.fails == "drawn":
            raise RuntimeError("no")
        return drawn


class Lossy:
    """A server and its only client, whose process may be lost with what it has not saved."""

    def __init__(self, folder: Path) -> None:
        self.sent: Sent = {}
        self.rounds = UnfinishedRounds()
        self.ledger = PrivacyLedger(DELTA)
        self.store = ClientStore(folder)
        self.number = 0
        self.restart()

    def restart(self) -> None:
        """Begin another process."""
        self.host = ClientHost(self.store)

    @property
    def client(self) -> Failing:
        client = self.host.clients[0]
        assert isinstance(client, Failing)
        return client

    def _build(self) -> SplitClient:
        privacy = PrivacyBudget(delta=DELTA)
        (client,) = ONE.make_clients(sgd(0.1), kind=Failing, privacy=privacy)
        assert isinstance(client, Failing)
        client.sent = self.sent
        client.repeatable_secrets = False
        return client

    def train(self, steps: int, sends: int, fails: str, *, saves: bool = False) -> None:
        """Run a round of at most `steps`, in which the client fails after it has sent as many.

        Parameters
        ----------
        fails
            "before" or "drawn" as for `Failing`; "lost": the last reply is; "": it does not fail.
        saves
            Whether its state is saved although it fails.
        """
        self.number += 1
        before = self.rounds.of(0)
        lengths = [length for length in before if length is not None]
        ticket = Ticket(
            client=0, seed=5, server_round=self.number, num_rounds=99, arrays="initial",
            state_round=self.number - 1, attempt=len(before), earlier=lengths,
        )  # fmt: skip
        described = {0: read_description(self.host.attach(ticket, self._build, None))}
        begun = RoundBegun(self.number, {0: before}, False, described, nodes=[0], steps=steps)
        for observer in (self.rounds, self.ledger):
            observer.on_begin(begun)
        for number in range(sends):
            self._ask(number, lost=fails == "lost" and number == sends - 1)
        if fails in ("before", "drawn"):
            self.client.fails = fails
            self._ask(sends)
            self.client.fails = ""
        round_done = RoundDone(
            server_round=self.number, num_rounds=99, seconds=1.0, steps=steps, step_seconds=1.0,
            clients_alive=1, failures={0: "no"} if fails else {},
        )  # fmt: skip
        if not fails:
            self.host.finish(ticket)
        elif saves:
            self.host.keep_if_changed(ticket)
        for observer in (self.rounds, self.ledger):
            observer.on_round(round_done)

    def _ask(self, number: int, *, lost: bool = False) -> None:
        payload = {"number": number, "progress": 0.0, "gradient": None, "plan": [SHARE.to_wire()]}
        event = partial(Exchange, self.number, 0, "step")
        for observer in (self.rounds, self.ledger):
            observer.on_exchange(event("down", payload, 0))
        reply = self.host.call("step", {0: payload})[0].reply
        if reply is not None and not lost:
            for observer in (self.rounds, self.ledger):
                observer.on_exchange(event("up", reply, 1))

    def check(self) -> None:
        """Assert that no ledger says less than what was sent, and the client's never more."""
        client_epsilon = self.client.epsilon
        assert client_epsilon is not None
        assert truth(self.sent, 0) <= client_epsilon * (1 + 1e-9)
        assert client_epsilon <= self.ledger.epsilons[0] * (1 + 1e-9)


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("seed", range(24))
def test_no_ledger_says_less_than_what_was_sent(seed: int, saves: bool, tmp_path: Path) -> None:
    """Where a batch was drawn and not sent, no state is saved that lacks what is owed for it."""
    draw = random.Random(seed)
    pair = Lossy(tmp_path)
    kinds = ["before", "lost"] if saves else ["before", "lost", "drawn"]
    most = draw.choice([1, 2, 5])
    for _ in range(draw.randint(1, 7)):
        if draw.random() < 0.5:
            pair.restart()
        steps = draw.randint(1, most)
        fails = draw.choice(kinds)
        sends = draw.randint(fails == "lost", steps - (fails != "lost"))
        pair.train(steps, sends, fails, saves=saves and draw.random() < 0.5)
    pair.train(1, 1, "")
    pair.check()
    assert pair.rounds.of(0) == []


def test_who_lives_on_is_charged_what_it_has_sent(tmp_path: Path) -> None:
    """It is not charged once more for what a server allows it in every round before."""
    pair = Lossy(tmp_path)
    for _ in range(20):
        pair.train(9, 1, "before")
    pair.train(1, 1, "")
    pair.check()
    assert pair.client.epsilon == pytest.approx(truth(pair.sent, 0))
    # The server cannot know that a record is in every third batch only, nor what was not answered.
    assert pair.ledger.epsilons[0] <= epsilon(3 * 21 * (E_S + E_Y))


def test_what_is_owed_by_a_process_that_begins_again_grows_with_the_rounds(tmp_path: Path) -> None:
    """Not with their square, as if each counted on top of all before it."""
    owed = []
    for number in (10, 40):
        pair = Lossy(tmp_path / str(number))
        for _ in range(number):
            pair.restart()
            pair.train(9, 1, "lost")
        pair.restart()
        pair.train(1, 1, "")
        pair.check()
        assert pair.client.guard is not None
        owed.append(float(pair.client.guard.ledger.spent()[2]))
    assert 4 < owed[1] / owed[0] < 7


def test_a_client_that_fails_in_170_rounds_keeps_its_epsilon(tmp_path: Path) -> None:
    """All that it might have sent must not be too much to be drawn again."""
    pair = Lossy(tmp_path)
    for _ in range(170):
        pair.restart()
        pair.train(10, 0, "before")
    pair.train(10, 10, "")
    pair.check()
    assert math.isfinite(pair.ledger.epsilons[0])


@pytest.mark.parametrize(("whole", "warnings"), [(0, 1), (60, 0)])
def test_a_warning_says_when_unfinished_rounds_are_most_of_an_epsilon(
    whole: int, warnings: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so long before they leave nothing of a budget, and no more than once."""
    pair = Lossy(tmp_path)
    for _ in range(whole):
        pair.train(9, 9, "")
    for _ in range(4):
        pair.restart()
        pair.train(1, 0, "before")
    assert caplog.text.count("is more than half of its epsilon") == warnings


def test_a_run_charges_a_client_that_lives_on_for_what_it_was_asked_for() -> None:
    def lose(clients: Sequence[Any]) -> None:
        clients[3].fails_until = 20

    outcome = run(noised(DPSL), rounds=21, prepare=lose, steps_per_round=9)
    check_order(outcome, range(4))
    assert outcome.by_client(3) == pytest.approx(truth(outcome.sent, 3))
    assert outcome.by_server(3) < outcome.by_server(0)
