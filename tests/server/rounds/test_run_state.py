"""The state of a run: what it keeps apart from its strategy, and how the next run begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from flwr_splitmix.clients import SplitClient
from flwr_splitmix.experiments.baselines import FedAvg, WholeClient
from flwr_splitmix.links import Link, LinkError, StreamLink
from flwr_splitmix.runs import Run
from flwr_splitmix.server.rounds import RoundLoop, loop
from flwr_splitmix.strategies import PSL, SFL, CutMixSFL, SplitStrategy, USplitFL
from flwr_splitmix.testing.toy import Toy, sgd
from flwr_splitmix.testing.toy_texts import text_toy

TOY = Toy(tests=4)
Fitted = tuple[RoundLoop, list[Any]]


def split(kind: type[SplitStrategy] = PSL, **options: Any) -> SplitStrategy:
    options = {"device": "cpu", "steps_per_round": 2, "optimizer": sgd(0.1), **options}
    return kind(TOY.upper(), **options)


def in_the_l_shape() -> Fitted:
    return split(CutMixSFL, evaluation="federated"), list(TOY.make_clients(sgd(0.1)))


def in_the_u_shape() -> Fitted:
    toy = text_toy("USplitFL", clients=2, tests=4)
    strategy = USplitFL(toy.server(), device="cpu", evaluation="federated")
    return strategy, list(toy.clients_for(strategy))


def of_whole_models() -> Fitted:
    models = [nn.Sequential(nn.Flatten(), nn.Linear(8, 2)) for _ in range(2)]
    data = [(torch.zeros(8), 0), (torch.ones(8), 1)]
    return FedAvg(), [WholeClient(model, data, batch_size=2, device="cpu") for model in models]


@pytest.mark.parametrize("make", [in_the_l_shape, in_the_u_shape, of_whole_models])
def test_a_run_leaves_a_strategys_options_alone(make: Callable[[], Fitted]) -> None:
    """Link, seed, rounds, remarks and speeds of a run are in its state, not among the options."""
    strategy, clients = make()
    before = dict(vars(strategy))
    strategy.fit(clients, 2)
    strategy.fit(clients, 1)
    after = vars(strategy)
    assert {name for name in after if after[name] is not before.get(name)} == {"_run_state"}


@pytest.mark.parametrize("kind", [PSL, SFL])
@pytest.mark.parametrize("wrong", [{"num_rounds": 0}, {"evaluate_fn": "accuracy"}])
def test_a_fit_that_is_refused_leaves_the_last_one_as_it_was(
    kind: type[SplitStrategy], wrong: dict[str, Any]
) -> None:
    """The next `fit` draws as if the refused one had not been called."""
    losses = []
    for refused in (False, True):
        strategy, clients = split(kind), TOY.make_clients(sgd(0.1))
        strategy.fit(clients, 2)
        if refused:
            with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
                strategy.fit(clients, **wrong)
            assert len(strategy.rows) == 2
            assert set(strategy.last_trained_round.values()) == {2}
        strategy.fit(clients, 2)
        losses.append([row["loss"] for row in strategy.rows])
    assert losses[0] == losses[1]


def test_before_the_first_run_a_strategy_has_none() -> None:
    strategy = split()
    assert (strategy.stop_reason, strategy.last_trained_round, strategy.rows) == ("", {}, [])
    strategy.stop_reason = ""  # as in a constructor of one's own
    with pytest.raises(LinkError, match="stop_reason ends a run after its round: set it within"):
        strategy.stop_reason = "enough"
    with pytest.raises(LinkError, match="PSL has no run and no link, as neither its start"):
        _ = strategy.run_state


def test_how_fast_clients_are_is_known_of_these_alone() -> None:
    strategy, clients = split(), TOY.make_clients(sgd(0.1))
    strategy.fit(clients, 1)
    seconds = dict(strategy.run_state.shape.seconds)
    assert seconds.keys() == set(range(TOY.clients))
    few = split(fraction_train=0.5)
    few.fit(clients, 1)
    sampled = few.run_state.shape.seconds.keys()
    few.fit(clients, 3)  # goes on: what is known of those that are not drawn again stays
    assert few.run_state.shape.seconds.keys() >= sampled
    strategy.fit(clients[:2], 1)
    assert strategy.run_state.shape.seconds.keys() == {0, 1}


class Unanswered(StreamLink):
    """Finds no node."""

    def open(self, grid: Any) -> None:
        raise LinkError("no node")


def test_each_start_waits_as_long_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second `start` has its own link, with its own wait."""
    waits: list[float] = []

    def link_of(run: object, attach_timeout: float) -> Link:
        waits.append(attach_timeout)
        return Unanswered(address="127.0.0.1:0")

    monkeypatch.setattr(loop, "default_link", link_of)
    strategy = split()
    grid: Any = None
    for wait in (30.0, 60.0):
        with pytest.raises(LinkError, match="no node"):
            strategy.start(grid, ArrayRecord(TOY.lower().state_dict()), 1, attach_timeout=wait)
    assert waits == [30.0, 60.0]
    assert strategy.link is None


class Lost(SplitClient):
    """Fails in every step."""

    def run(self, method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        raise RuntimeError("gone")


APP = {"min-nodes": 2, "num-server-rounds": 1}
"""Keys of the package's apps."""


@pytest.mark.parametrize(
    ("config", "least", "rounds"),
    [
        ({}, "min_nodes", "num_rounds"),
        ({"nodes": 2, "rounds": 1}, "min_nodes", "num_rounds"),
        (APP, "min-nodes", "num-server-rounds"),
    ],
)
def test_an_option_has_the_name_that_the_users_app_has_for_it(
    config: dict[str, Any],
    least: str,
    rounds: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A ServerApp of one's own does not have the keys of the package's apps."""

    def make_strategy() -> SplitStrategy:
        return split(min_nodes=2, run=Run.create(config, name="own", home=tmp_path))

    with pytest.raises(LinkError, match=f"0 clients are left, {least} is 2: "):
        make_strategy().fit(TOY.make_clients(sgd(0.1), kind=Lost), 1)
    strategy = make_strategy()
    for _ in range(2):
        strategy.fit(TOY.make_clients(sgd(0.1)), 1)
    assert f"nothing is left to do: raise {rounds} to continue it" in caplog.text


def test_the_error_of_an_own_start_says_what_holds_and_what_else_may_be_meant() -> None:
    class Logged(PSL):
        def start(self, *arguments: Any, **options: Any) -> Any:
            return super().start(*arguments, **options)

    strategy = Logged(TOY.upper(), device="cpu")
    message = r"Logged has no run .* own start\(\) has not called super\(\)\.start.* goes inside"
    with pytest.raises(LinkError, match=message):
        _ = strategy.run_state
