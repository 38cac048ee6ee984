"""Which of a client's metrics are epsilons, by their names."""

from __future__ import annotations

EPSILON = "epsilon"
"""Name of the epsilon among a client's metrics; further ones begin with it and "-"."""


def is_epsilon(metric: str) -> bool:
    """Return whether a client's metric is an epsilon, by its name."""
    return metric == EPSILON or metric.startswith(f"{EPSILON}-")
