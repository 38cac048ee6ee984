"""A run that goes on keeps its ledger, and has no epsilon for rounds that the ledger missed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flwr_splitmix.clients import ClientError, PrivacyBudget, SplitClient, exchange
from flwr_splitmix.observers import Observer
from flwr_splitmix.privacy import GaussianNoise, Ledger
from flwr_splitmix.privacy.events import UNBOUNDED
from flwr_splitmix.runs import Run, RunError
from flwr_splitmix.strategies import PSL, DPMixSL, SplitStrategy
from flwr_splitmix.testing.resume import InterruptionError, StopIn
from flwr_splitmix.testing.toy import Toy

TOY = Toy(clients=2, batch_norm=False)
NOISE = GaussianNoise(sigma_s=20.0, sigma_y=10.0, clip_norm=1.5)
MISSED = "had no noise, or noise that another ledger counted. So the run has no epsilon"


def new_run(home: Path) -> Run:
    return Run.create({}, name="x", home=home)


def again(run: Run) -> Run:
    return Run.open(run.id, home=run.path.parent.parent)


def go_on(
    run: Run | None, rounds: int, noise: GaussianNoise | None, *,
    clients: Sequence[SplitClient] | None = None, toy: Toy = TOY, kind: type[SplitStrategy] = PSL,
    **options: Any,
) -> SplitStrategy:  # fmt: skip
    """Train up to a round with a new strategy and new clients."""
    run = None if run is None else again(run)
    strategy = kind(toy.upper(), noise=noise, device="cpu", run=run, **options)
    strategy.fit(toy.make_clients(repeatable_secrets=False) if clients is None else clients, rounds)
    return strategy


def epsilons(strategy: SplitStrategy) -> Mapping[int, float]:
    assert strategy.ledger is not None
    return strategy.ledger.epsilons


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in log.records if record.levelname == "WARNING"]
    return [message for message in messages if "noise" in message or "epsilon" in message]


def test_noise_that_begins_amid_a_run_leaves_it_no_epsilon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An epsilon of the rounds with noise alone would be false."""
    run = new_run(tmp_path)
    go_on(run, 3, None)
    caplog.clear()
    strategy = go_on(run, 4, NOISE)
    assert strategy.rows[-1]["epsilon"] == math.inf
    (warning,) = warnings(caplog)
    assert warning.startswith(f"rounds 1 to 3 of this run {MISSED}")
    summary = again(run).summary or {}
    assert summary["epsilon"] == "inf"
    assert UNBOUNDED["missed"] in summary["privacy"]
    # The ledger knows it from now on.
    assert go_on(run, 5, NOISE).rows[-1]["epsilon"] == math.inf


def test_rounds_without_noise_amid_a_run_forget_no_charge(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a checkpoint of a round without noise would lose the ledger."""
    run, through = new_run(tmp_path), new_run(tmp_path)
    for each in (run, through):
        go_on(each, 2, NOISE)
    for rounds in (3, 4):  # a second checkpoint keeps what the first one kept
        go_on(run, rounds, None)
    caplog.clear()
    strategy = go_on(run, 5, NOISE)
    (warning,) = warnings(caplog)
    assert warning.startswith(f"rounds 3 to 4 of this run {MISSED}")
    assert strategy.rows[-1]["epsilon"] == math.inf
    whole = go_on(through, 3, NOISE)
    for client in (0, 1):
        assert ledger_of(strategy, client).releases == ledger_of(whole, client).releases


def ledger_of(strategy: SplitStrategy, client: int) -> Ledger:
    assert strategy.ledger is not None
    return strategy.ledger.ledgers[client]


def test_noise_in_all_rounds_is_told_of_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(tmp_path)
    for rounds in (2, 3):
        strategy = go_on(run, rounds, NOISE)
    assert 0 < strategy.rows[-1]["epsilon"] < math.inf
    assert warnings(caplog) == []


def test_who_took_no_part_in_rounds_without_noise_keeps_its_epsilon(tmp_path: Path) -> None:
    toy = Toy(clients=3, batch_norm=False)
    run = new_run(tmp_path)
    (drawn,) = go_on(run, 1, None, toy=toy, fraction_train=0.3).last_trained_round
    spent = epsilons(go_on(run, 2, NOISE, toy=toy))
    assert sorted(spent) == [0, 1, 2]
    assert {client for client, epsilon in spent.items() if epsilon == math.inf} == {drawn}


def test_who_only_sent_its_test_data_without_noise_has_no_epsilon(tmp_path: Path) -> None:
    """An evaluation draws its clients anew."""
    toy = Toy(clients=3, batch_norm=False, tests=4)
    run = new_run(tmp_path)
    drawn = set(
        go_on(run, 1, None, toy=toy, fraction_train=0.3, evaluation="federated").last_trained_round
    )
    tested = {client for one in again(run).begun if one.evaluates for client in one.clients}
    assert not tested <= drawn
    spent = epsilons(go_on(run, 2, NOISE, toy=toy))
    assert {c for c, epsilon in spent.items() if epsilon == math.inf} == drawn | tested
    assert len(spent) == 3


class Leaves(SplitClient):
    """A client that sends one batch, and fails at the next."""

    @exchange
    def step(self, **step: Any) -> dict[str, Any]:
        """Fail from the second step on."""
        if step["number"]:
            raise ClientError("the light went out")
        return super().step(**step)


def test_who_was_lost_in_a_round_without_noise_has_no_epsilon(tmp_path: Path) -> None:
    """It has sent something, and finished no round."""
    run = new_run(tmp_path)
    lost = TOY.make_clients(kind=Leaves, repeatable_secrets=False)
    stays = TOY.make_clients(repeatable_secrets=False)
    assert list(go_on(run, 1, None, clients=[stays[0], lost[1]]).last_trained_round) == [0]
    assert epsilons(go_on(run, 2, NOISE)) == {0: math.inf, 1: math.inf}


@pytest.mark.parametrize("before", [0, 2])
def test_an_interrupted_round_without_noise_is_not_priced_with_noise(
    before: int, tmp_path: Path
) -> None:
    """The second time has noise, the first one had none."""
    run = new_run(tmp_path)
    if before:
        go_on(run, before, NOISE)
    stop = StopIn(before + 1, 1)
    with pytest.raises(InterruptionError):
        go_on(run, before + 1, None, observers=[stop])
    strategy = go_on(run, before + 1, NOISE)
    assert strategy.rows[-1]["epsilon"] == math.inf


@pytest.mark.parametrize("budget", [None, PrivacyBudget()])
def test_clients_of_a_fit_tell_the_next_strategy_that_they_have_no_epsilon(
    budget: PrivacyBudget | None,
) -> None:
    """Or the server would say a number, and each of its clients infinity."""
    clients = TOY.make_clients(repeatable_secrets=False, privacy=budget)
    go_on(None, 1, None, clients=clients)
    strategy = go_on(None, 1, NOISE, clients=clients)
    assert {client.epsilon for client in clients} == {math.inf}
    assert set(epsilons(strategy).values()) == {math.inf}
    new = TOY.make_clients(repeatable_secrets=False, privacy=budget)
    assert math.inf not in epsilons(go_on(None, 1, NOISE, clients=new)).values()


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ({"relation": "replace"}, {"relation": "add-remove"}, "a ledger of relation 'add-remove'"),
        ({"trusted_mixer": True}, {"trusted_mixer": False}, "a ledger of single uploads cannot"),
    ],
)
def test_another_kind_of_ledger_is_refused_with_the_remedy(
    first: dict[str, Any], then: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Otherwise it would be an error without a remedy, or lack the first rounds' cost."""
    run = new_run(tmp_path)
    go_on(run, 1, NOISE, kind=DPMixSL, **first)
    summary = again(run).summary
    refused = (
        rf"of round 1 has a state that PrivacyLedger cannot .*{message}.*resume with the options"
    )
    with pytest.raises(RunError, match=refused):
        go_on(run, 2, NOISE, kind=DPMixSL, **then)
    assert (again(run).status, again(run).summary) == ("finished", summary)
    assert go_on(run, 2, NOISE, kind=DPMixSL, **first).rows[-1]["epsilon"] > 0


class Counts(Observer):
    """An observer with a state."""

    def __init__(self) -> None:
        self.rounds = 0

    def on_round(self, event: Any) -> None:
        self.rounds += 1

    def state(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.rounds = state["rounds"]


def test_an_observer_that_is_absent_for_a_while_finds_its_state_again(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    step = partial(go_on, run, noise=None)
    step(2, observers=[Counts(), Counts()])
    step(3)
    both, one = [Counts(), Counts()], [Counts()]
    step(4, observers=one)
    assert one[0].rounds == 3
    step(5, observers=both)
    assert [each.rounds for each in both] == [4, 3]
    # Another run of the same strategy begins without.
    strategy = step(6)
    assert len(strategy.audience.absent) == 2
    strategy.recorder.folder.run = None
    strategy.fit(TOY.make_clients(), 1)
    assert not strategy.audience.absent
