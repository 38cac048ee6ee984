"""A vision model, cut as a strategy needs it."""

from __future__ import annotations

from typing import Any, Literal

from flwr_splitmix.segments import SplitModel, split_shuffled_edge, split_vision_model
from flwr_splitmix.strategies import SplitStrategy


def edge_of(strategy: SplitStrategy) -> dict[str, Any] | None:
    """Return how the strategy's frozen edges shuffle, {"method", "kappa"}; None: it has none."""
    return getattr(strategy, "edge", None)


def split_for(
    strategy: SplitStrategy,
    model: str,
    *,
    cut_at: str | None = None,
    cell: int = 2,
    positions: Literal["lower", "upper"] | None = None,
    **options: Any,
) -> SplitModel:
    """Build a vision model and cut it as a strategy needs it.

    Parameters
    ----------
    strategy
        One with a frozen edge has a cut of its own, for which `cut_at`, `cell` and `positions`
        mean nothing.
    positions
        None: the segment that the strategy's mixer asks for.
    model, cut_at, cell, **options
        As for `split_vision_model`.

    Raises
    ------
    ValueError
        As `split_vision_model` and `split_shuffled_edge` do.
    """
    made_by, arguments = split_call(
        strategy, model, cut_at=cut_at, cell=cell, positions=positions, **options
    )
    return SPLITS[made_by](**arguments)


SPLITS = {"split_vision_model": split_vision_model, "split_shuffled_edge": split_shuffled_edge}
"""What cuts models, by name."""


def split_call(
    strategy: SplitStrategy,
    model: str,
    *,
    cut_at: str | None = None,
    cell: int = 2,
    positions: Literal["lower", "upper"] | None = None,
    **options: Any,
) -> tuple[str, dict[str, Any]]:
    """Return which of `SPLITS` cuts a model as a strategy needs it, and its arguments.

    The parameters are those of `split_for`.
    """
    if edge := edge_of(strategy):
        return "split_shuffled_edge", {"name": model, **edge, **options}
    return "split_vision_model", {
        "name": model,
        "cut_at": cut_at,
        "cell": cell,
        "positions": positions or strategy.mixer.positions or "lower",
        **options,
    }
