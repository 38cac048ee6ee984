"""Flower's strategies as aggregators of the clients' segments."""

from flwr_splitmix.server.aggregation.choice import AggregatorName, fedavg, make_aggregator
from flwr_splitmix.server.aggregation.lower import LowerAggregator
from flwr_splitmix.server.aggregation.nodes import AggregatorError

__all__ = ["AggregatorError", "AggregatorName", "LowerAggregator", "fedavg", "make_aggregator"]
