"""The truth, the client's ledger and the server's: none says less than was sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.events import RoundDone
from flwr_splitmix.links import LocalLink
from flwr_splitmix.observers import Observer
from flwr_splitmix.schedule import constant
from flwr_splitmix.strategies import (
    SplitStrategy,
)
from flwr_splitmix.testing.toy import Toy, sgd
from tests.observers.kept_events import KeptEvents
from tests.strategies.noise.honest import (
    FORMS,
    NOISE,
    TOY,
    Honest,
    Outcome,
    Sent,
    check_order,
    new_run,
    noised,
    run,
    truth,
)


@pytest.mark.parametrize("form", ["DPSL", "DPMixSL", "DPCutMixSL", "k-times", "cutout"])
@pytest.mark.parametrize(
    ("toy", "options"),
    [
        (TOY, {}),
        (TOY, {"fraction_train": 0.75}),
        (TOY, {"steps_per_round": 4}),
        (replace(TOY, clients=5, examples=(12, 14, 9, 20, 12)), {}),
        (replace(TOY, clients=5, examples=(12, 14, 9, 20, 12)), {"fraction_train": 0.75}),
        (replace(TOY, examples=(12, 3, 12, 12)), {}),
        (replace(TOY, examples=(12, 3, 12, 12)), {"steps_per_round": 4}),
    ],
    ids=[
        "even", "even, some clients", "even, parts of epochs", "of other sizes",
        "of other sizes, some clients", "with replacement", "with replacement, parts of epochs",
    ],
)  # fmt: skip
def test_no_ledger_says_less_than_was_sent_and_the_client_never_more_than_the_server(
    form: str, toy: Toy, options: dict[str, Any]
) -> None:
    kind, form_options = FORMS[form]
    outcome = run(noised(kind), toy, 4, **form_options, **options)
    check_order(outcome, range(toy.clients))
    if form != "cutout" and toy is TOY:  # Cutout is charged as if it kept everything
        for client in range(4):
            assert truth(outcome.sent, client) == pytest.approx(outcome.by_client(client))


@pytest.mark.parametrize("form", ["DPSL", "DPCutMixSL", "k-times"])
@pytest.mark.parametrize("place", [(1, 1), (2, 0), (3, 3)])
@pytest.mark.parametrize("nonsense", [False, True], ids=["fails", "sends nonsense"])
def test_a_client_that_fails_and_comes_back_pays_for_all_that_it_sent(
    form: str, place: tuple[int, int], nonsense: bool
) -> None:
    """It goes on in the midst of a pass, which the server cannot know."""

    def break_one(clients: Sequence[Any]) -> None:
        setattr(clients[1], "nonsense_at" if nonsense else "fails_at", place)

    kind, form_options = FORMS[form]
    toy = replace(TOY, clients=5, examples=20)
    outcome = run(noised(kind), toy, 6, prepare=break_one, steps_per_round=4, **form_options)
    assert 1 in outcome.seen.rounds[place[0] - 1].failures
    assert 1 not in outcome.seen.rounds[place[0]].failures
    check_order(outcome, range(5))


class Restarts(Observer):
    """After the round in which a client failed, it is built anew from the state that it kept."""

    def __init__(self, build: Callable[[], SplitClient]) -> None:
        self.build = build
        self.strategy: SplitStrategy | None = None

    def on_round(self, event: RoundDone) -> None:
        if 1 in event.failures:
            assert self.strategy is not None
            link = self.strategy.run_state.link
            assert isinstance(link, LocalLink)
            link.clients[1] = self.build()
            del link.host.clients[1]


@pytest.mark.parametrize("form", ["DPSL", "DPCutMixSL", "k-times"])
@pytest.mark.parametrize("place", [(1, 2), (2, 0), (2, 3), (4, 1)])
def test_the_server_counts_what_a_client_sends_again_after_it_lost_a_round(
    form: str, place: tuple[int, int], tmp_path: Path
) -> None:
    kind, form_options = FORMS[form]
    toy, releases = replace(TOY, clients=5, examples=20), Sent()
    options = {"device": "cpu", "optimizer": sgd(0.1), "schedule": constant, "steps_per_round": 4}

    def build() -> Honest:
        client = toy.make_clients(sgd(0.1), kind=Honest, repeatable_secrets=False)[1]
        assert isinstance(client, Honest)
        client.sent = releases
        return client

    restarts = Restarts(build)
    strategy = kind(
        toy.upper(),
        noise=NOISE,
        run=new_run(tmp_path),
        observers=[restarts],
        **form_options,
        **options,
    )
    restarts.strategy = strategy
    clients = [build() if index == 1 else client for index, client in enumerate(toy.make_clients())]
    clients[1].fails_at = place  # type: ignore[attr-defined]
    strategy.fit(clients, 6)
    # It went back, and drew batches again that it had sent.
    assert strategy.run_state.link.clients[1] is not clients[1]
    assert strategy.run_state.link.clients[1].batches.drawn == 4 * 5
    again = place[1]
    assert len(releases[1]) == 4 * 5 + again
    # The server tells it, so that its own ledger, which went back too, has it as well.
    outcome = Outcome(strategy, strategy.run_state.link.clients, KeptEvents(), releases)
    check_order(outcome, [1])
