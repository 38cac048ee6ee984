"""Flower's strategies as aggregators of the clients' segments."""

from flwr_splitmix.server.aggregation.lower import (
    AggregatorName,
    LowerAggregator,
    fedavg,
    make_aggregator,
)
from flwr_splitmix.server.aggregation.nodes import AggregatorError

__all__ = ["AggregatorError", "AggregatorName", "LowerAggregator", "fedavg", "make_aggregator"]
