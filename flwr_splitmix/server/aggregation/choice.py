"""Flower's strategies that can aggregate lower segments, and the runs in which they can."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Literal, get_args

from flwr.serverapp import strategy as flower

from flwr_splitmix.server.aggregation.nodes import AggregatorError, waits_for_ever

log = logging.getLogger("flwr.splitmix")

AggregatorName = Literal[
    "FedAvg", "FedAvgM", "FedAdam", "FedAdagrad", "FedYogi", "FedMedian", "FedTrimmedAvg"
]
"""Flower's strategies that can aggregate lower segments without further options."""

_REFUSED: dict[str, str] = {
    "FedProx": "its proximal term must be computed by matching client code",
    "QFedAvg": "it needs the clients' own training loss, which only the server knows here",
    "FedXgbBagging": "it aggregates trees",
    "FedXgbCyclic": "it aggregates trees",
    "DifferentialPrivacyClientSideFixedClipping": "it needs a clipping mod at the client",
    "DifferentialPrivacyClientSideAdaptiveClipping": "it needs a clipping mod at the client",
}

_CONFIGURED = {getattr(flower, name).configure_train for name in get_args(AggregatorName)}
"""Flower's own methods; they differ in what they record about a round before drawing its nodes."""

ROBUST = (
    flower.FedMedian,
    flower.FedTrimmedAvg,
    flower.Krum,
    flower.MultiKrum,
    flower.Bulyan,
)
"""Flower's strategies that leave outliers out, and that keep nothing from round to round."""

_MINIMA = ("min_train_nodes", "min_available_nodes")


def make_aggregator(name: AggregatorName) -> flower.Strategy:
    """Return the aggregator with this name in Flower, accepting a single node."""
    kind: type[flower.FedAvg] = getattr(flower, name)
    return kind(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)


def fedavg() -> flower.Strategy:
    """Return FedAvg as an aggregator: weighted by examples, accepting a single node."""
    return make_aggregator("FedAvg")


def with_wrapped(strategy: flower.Strategy | None) -> Iterator[flower.Strategy]:
    """Yield a strategy and those that it wraps, such as one that adds noise to another's result."""
    while isinstance(strategy, flower.Strategy):
        yield strategy
        strategy = getattr(strategy, "strategy", None)


def check_aggregator(strategy: flower.Strategy | None) -> None:
    """Reject a strategy that needs client code or content that split learning does not have.

    Raises
    ------
    AggregatorError
        If it is such a strategy, or none of Flower's.
    """
    if strategy is not None and not isinstance(strategy, flower.Strategy):
        raise AggregatorError(
            f"an aggregator is a strategy of flwr.serverapp.strategy, not {type(strategy).__name__}"
        )
    for kind in (
        kind for aggregator in with_wrapped(strategy) for kind in type(aggregator).__mro__
    ):
        if reason := _REFUSED.get(kind.__name__):
            raise AggregatorError(
                f"{kind.__name__} cannot aggregate clients' weights: {reason}; use "
                f"{', '.join(get_args(AggregatorName))}, Krum, MultiKrum, Bulyan or your own"
            )


def check_draws_no_nodes(strategy: flower.Strategy | None) -> None:
    """Reject a strategy that draws a fraction of the nodes, by draws that do not repeat.

    Raises
    ------
    AggregatorError
        If its `fraction_train`, or that of a strategy which it wraps, is not 1.
    """
    for aggregator in _sampling_as_flower(strategy):
        fraction = getattr(aggregator, "fraction_train", 1.0)
        if fraction != 1:
            raise AggregatorError(
                f"{type(aggregator).__name__} has fraction_train {fraction:g}, whose draws no seed "
                "repeats; give fraction_train to the strategy of split learning instead"
            )


def check_enough_nodes(strategy: flower.Strategy | None, nodes: int) -> None:
    """Reject a strategy whose sampling, Flower's own, would wait forever for more nodes.

    Raises
    ------
    AggregatorError
        If it, or one that it wraps, asks for more than `nodes`.
    """
    for aggregator in _sampling_as_flower(strategy):
        if any(getattr(aggregator, key, 0) > nodes for key in _MINIMA):
            raise waits_for_ever(type(aggregator).__name__, nodes)


def warn_of_minima(strategy: flower.Strategy | None, min_nodes: int, option: str) -> None:
    """Warn of a strategy that needs more nodes in a round than `min_nodes`.

    Parameters
    ----------
    option
        The name of `min_nodes` for the user.
    """
    for aggregator in _sampling_as_flower(strategy):
        needed = max(getattr(aggregator, key, 0) for key in _MINIMA)
        if needed > min_nodes:
            log.warning(
                "%s is %d, but %s requires %d nodes (min_train_nodes or "
                "min_available_nodes) and ends the run in a round with fewer; lower these values",
                option,
                min_nodes,
                type(aggregator).__name__,
                needed,
            )


def check_works_without_grid(strategy: flower.Strategy | None, clients: int) -> None:
    """Reject a strategy that `fit`, unlike a Flower run, cannot have with so many clients.

    Raises
    ------
    AggregatorError
        If the strategy has a `configure_train` other than Flower's, which may need a Flower run,
        waits for more nodes than there are, or draws nodes.
    """
    check_enough_nodes(strategy, clients)
    check_draws_no_nodes(strategy)
    kind = type(strategy)
    if strategy is not None and getattr(kind, "configure_train", None) not in _CONFIGURED:
        raise AggregatorError(
            f"{kind.__name__} configures its rounds through a Flower grid, and fit() has "
            f"none; use {', '.join(get_args(AggregatorName))}, Krum, MultiKrum "
            "or Bulyan with it"
        )


def _sampling_as_flower(strategy: flower.Strategy | None) -> Iterator[flower.Strategy]:
    """Yield a strategy and those that it wraps, as long as Flower's own code samples."""
    for aggregator in with_wrapped(strategy):
        if type(aggregator).configure_train.__module__.split(".")[0] != "flwr":
            return
        yield aggregator
