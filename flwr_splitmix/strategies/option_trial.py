"""A strategy of the L shape made without a model, to check its options and its needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from flwr_splitmix.strategies import STRATEGIES, SplitStrategy


def needs_labels(strategy: str) -> bool:
    """Return whether the server needs the clients' labels."""
    return STRATEGIES[strategy].needs_labels


def trial_strategy(
    strategy: str, options: Mapping[str, Any], upper: nn.Module | None = None
) -> SplitStrategy:
    """Make a strategy that will not train, to check its options and its needs.

    Parameters
    ----------
    strategy
        A key of `STRATEGIES`.
    options
        Arguments of its constructor, without labels; `num_classes` is 2 unless it is among them.
    upper
        The upper segment; None makes the strategy without a model.

    Raises
    ------
    TypeError, ValueError
        Raised by the constructor.
    """
    labels: dict[str, Any] = {"labels": ()} if needs_labels(strategy) else {}
    arguments = {"num_classes": 2, "device": "cpu", **labels, **options}
    return STRATEGIES[strategy](nn.Identity() if upper is None else upper, **arguments)
