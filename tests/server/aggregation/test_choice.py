"""Which Flower strategies aggregate, and which are refused, in which runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast, get_args

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from flwr_splitmix.links import LinkError
from flwr_splitmix.server.aggregation import (
    AggregatorError,
    AggregatorName,
    LowerAggregator,
    make_aggregator,
)
from flwr_splitmix.strategies import SFL
from flwr_splitmix.testing.toy import Toy, sgd
from tests.server.aggregation.aggregators import ANY_NODES, noisy


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: flower.FedProx(proximal_mu=0.1), "FedProx cannot aggregate.*proximal term"),
        (
            lambda: flower.QFedAvg(client_learning_rate=0.1),
            "QFedAvg cannot aggregate.*own training",
        ),
        (flower.FedXgbBagging, "FedXgbBagging cannot aggregate.*trees"),
        (flower.FedXgbCyclic, "FedXgbCyclic cannot aggregate.*trees"),
        (
            lambda: flower.DifferentialPrivacyClientSideFixedClipping(flower.FedAvg(), 1.0, 1.0, 2),
            "needs a clipping mod at the client",
        ),
    ],
)
def test_aggregators_that_need_client_code_are_refused(make: Any, sentence: str) -> None:
    with pytest.raises(AggregatorError, match=sentence):
        SFL(Toy().upper(), aggregator=make(), device="cpu")


@pytest.mark.parametrize("name", get_args(AggregatorName))
def test_an_aggregator_by_name_is_that_of_flower_and_takes_a_single_node(
    name: AggregatorName,
) -> None:
    strategy: Any = LowerAggregator(make_aggregator(name)).strategy
    assert type(strategy) is getattr(flower, name)
    assert ANY_NODES.items() <= vars(strategy).items()


def test_a_strategy_of_split_learning_is_no_aggregator() -> None:
    """Otherwise it would fail in the first round, with a message about a link."""
    strategy = SFL(Toy().upper(), device="cpu")
    for aggregator in (strategy, noisy(strategy)):
        with pytest.raises(AggregatorError, match="SFL runs rounds of split learning, and aggreg"):
            SFL(Toy().upper(), aggregator=aggregator, device="cpu")


def test_a_strategy_around_one_of_split_learning_is_told_its_place() -> None:
    wrapper, grid = noisy(SFL(Toy().upper(), device="cpu")), cast(Grid, None)
    with pytest.raises(LinkError, match=r"no strategy can wrap it: .* aggregator=Differential"):
        wrapper.configure_train(1, ArrayRecord(), ConfigRecord(), grid)


def test_a_subclass_of_a_refused_strategy_is_refused() -> None:
    class Mine(flower.FedProx):
        pass

    for aggregator in (Mine(proximal_mu=0.1), noisy(Mine(proximal_mu=0.1))):
        with pytest.raises(AggregatorError, match="FedProx cannot aggregate"):
            LowerAggregator(aggregator)


def test_only_a_flower_strategy_aggregates() -> None:
    with pytest.raises(AggregatorError, match=r"flwr.serverapp.strategy, not str"):
        LowerAggregator("FedAvg")  # type: ignore[arg-type]


def test_an_aggregator_that_configures_its_rounds_is_refused_outside_a_flower_run() -> None:
    class Mine(flower.FedAdam):
        def configure_train(self, *arguments: Any) -> Iterable[Message]:
            return super().configure_train(*arguments)

    toy = Toy(clients=2)
    strategy = SFL(toy.upper(), aggregator=Mine(), device="cpu")
    with pytest.raises(
        AggregatorError, match=r"Mine configures its rounds through a Flower grid.*FedAvgM, FedAdam"
    ):
        strategy.fit(toy.make_clients(), 1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"fraction_train": 0.5}, "FedAvg has fraction_train 0.5, whose draws no seed repeats"),
        ({"min_available_nodes": 9}, "FedAvg waits for more nodes than the 2 that take part"),
    ],
)
def test_fit_refuses_what_an_aggregator_asks_of_a_grid(
    options: dict[str, Any], sentence: str
) -> None:
    """`fit` has no grid, and must not ignore what a Flower run with the same strategy heeds."""
    toy = Toy(clients=2)
    strategy = SFL(toy.upper(), device="cpu", aggregator=flower.FedAvg(**{**ANY_NODES, **options}))
    with pytest.raises(AggregatorError, match=sentence):
        strategy.fit(toy.make_clients(sgd(0.1)), 1)


def test_a_flower_run_refuses_an_aggregator_that_draws_nodes_too() -> None:
    """Flower's draws have no seed, so that the run would not repeat."""
    aggregator = flower.FedAvg(**ANY_NODES, fraction_train=0.5)
    strategy = SFL(Toy().upper(), device="cpu", aggregator=aggregator)
    grid: Any = None
    with pytest.raises(AggregatorError, match=r"has fraction_train 0\.5, whose draws no seed"):
        strategy.start(grid, ArrayRecord(), 1)
