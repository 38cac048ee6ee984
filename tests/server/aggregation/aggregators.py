"""Flower strategies for the tests of aggregation."""

from __future__ import annotations

from typing import Any

from flwr.serverapp import strategy as flower

ANY_NODES: dict[str, Any] = {
    "min_train_nodes": 1,
    "min_evaluate_nodes": 1,
    "min_available_nodes": 1,
}


def noisy(strategy: flower.Strategy) -> flower.Strategy:
    """Wrap a strategy in one that adds noise to its result."""
    return flower.DifferentialPrivacyServerSideFixedClipping(strategy, 1.0, 1.0, 2)
