"""Whether a run starts from what an earlier one has trained: it goes on with a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from torch import nn

from flwr_splitmix.runs import Run
from flwr_splitmix.server.last_use import note_use, used_by_another
from flwr_splitmix.strategies import PSL, SFL, CutMixSL, USplitSL
from flwr_splitmix.testing.toy import Toy, sgd
from flwr_splitmix.testing.toy_texts import TextToy

ANEW = "has learned in an earlier run of this"


def test_other_clients_go_on_from_a_trained_server_with_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The second method of a comparison begins with what the first has learned."""
    toy = Toy()
    strategy = PSL(toy.upper(), device="cpu", steps_per_round=1, optimizer=sgd(0.1))
    clients = toy.make_clients(sgd(0.1))
    arrays = strategy.fit(clients, 1).arrays
    strategy.fit(clients, 1)
    strategy.fit(clients, 1, initial_arrays=arrays)
    assert ANEW not in caplog.text  # as documented, the same clients go on
    strategy.fit(toy.make_clients(sgd(0.1)), 1)
    assert (
        caplog.text.count(f"the server's upper {ANEW} PSL, and its training continues from that; ")
        == 1
    )
    strategy.fit(toy.make_clients(sgd(0.1)), 1)
    assert caplog.text.count(ANEW) == 1


def test_other_clients_go_on_from_a_trained_trunk_with_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    toy = TextToy(clients=2)
    strategy = USplitSL(toy.server(), device="cpu", steps_per_round=1)
    for _ in range(2):
        assert ANEW not in caplog.text
        strategy.fit(toy.clients_for(strategy), 1)
    assert f"the server's trunk {ANEW} USplitSL" in caplog.text


def test_a_run_that_is_resumed_does_not_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toy, run = Toy(), Run.create({}, name="own", home=tmp_path)
    aggregator = FedAdam(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    strategy: Any = None
    for rounds in (1, 2, 3):
        if rounds < 3:
            strategy = SFL(toy.upper(), aggregator=aggregator, run=run, device="cpu")
        strategy.fit(toy.make_clients(sgd(0.1)), rounds)
    assert ANEW not in caplog.text
    assert "has aggregated for another strategy" not in caplog.text


@pytest.mark.parametrize(("kind", "warned"), [(FedAdam, True), (FedAvgM, True), (FedAvg, False)])
def test_an_aggregator_of_two_strategies_keeps_its_moments_with_a_word(
    kind: Any, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The second strategy begins with the moments of the first."""
    toy, warning = Toy(), "has aggregated for another strategy, and may still have its state"
    shared = kind(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    first, second = (SFL(toy.upper(), aggregator=shared, device="cpu") for _ in range(2))
    clients = toy.make_clients(sgd(0.1))
    first.fit(clients, 1)
    first.fit(clients, 1)
    assert warning not in caplog.text
    second.fit(toy.make_clients(sgd(0.1)), 1)
    assert caplog.text.count(f"the aggregator, {kind.__name__}, {warning}") == warned


ELSEWHERE = (
    "has learned in another strategy, and its training continues from that; if you mean to "
    "continue it, nothing is wrong; to compare from equal starts"
)


def test_an_upper_segment_of_two_strategies_goes_on_with_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The second method of a comparison begins with the weights of the first."""
    toy = Toy()
    upper = toy.upper()
    PSL(upper, device="cpu", steps_per_round=1).fit(toy.make_clients(sgd(0.1)), 1)
    PSL(toy.upper(), device="cpu", steps_per_round=1).fit(toy.make_clients(sgd(0.1)), 1)
    assert ELSEWHERE not in caplog.text
    second = CutMixSL(upper, k=2, device="cpu", steps_per_round=1)
    clients = toy.make_clients(sgd(0.1))
    for _ in range(2):
        second.fit(clients, 1)
        assert caplog.text.count(f"the server's upper {ELSEWHERE}") == 1
    assert ANEW not in caplog.text


def test_a_trunk_of_two_strategies_goes_on_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    toy = TextToy(clients=2)
    trunk = toy.server()
    for _ in range(2):
        assert ELSEWHERE not in caplog.text
        strategy = USplitSL(trunk, device="cpu", steps_per_round=1)
        strategy.fit(toy.clients_for(strategy), 1)
    assert f"the server's trunk {ELSEWHERE}" in caplog.text


def test_a_frozen_upper_segment_of_two_strategies_is_no_matter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    toy = Toy()
    upper = toy.upper().requires_grad_(False)
    for _ in range(2):
        PSL(upper, device="cpu", steps_per_round=1).fit(toy.make_clients(sgd(0.1)), 1)
    assert ELSEWHERE not in caplog.text


def test_a_use_ends_with_what_was_used() -> None:
    """Another object may come to lie where the first one was, and have its identity."""
    user = object()
    for _ in range(100):
        used = nn.Linear(1, 1)
        assert not used_by_another(used, user)
        note_use(used, object())
        assert used_by_another(used, user)
        del used
