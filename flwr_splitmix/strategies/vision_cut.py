"""The cut of a vision model that a strategy needs."""

from __future__ import annotations

from typing import Any, Literal

from flwr_splitmix.segments import SPLITS, SplitModel
from flwr_splitmix.strategies import SplitStrategy


def edge_of(strategy: SplitStrategy) -> dict[str, Any] | None:
    """Return what a strategy's frozen edges are, {"method", "kappa", ...}; None if it has none."""
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
        A strategy with a frozen edge has its own cut, and ignores `cut_at`, `cell` and
        `positions`.
    positions
        None: the segment that the strategy's mixer requires.
    model, cut_at, cell, **options
        As for `split_vision_model`.

        A frozen edge also takes "embedding".

    Raises
    ------
    ValueError
        Raised by `split_vision_model` and `split_shuffled_edge`.
    """
    made_by, arguments = split_call(
        strategy, model, cut_at=cut_at, cell=cell, positions=positions, **options
    )
    return SPLITS[made_by](**arguments)


def split_call(
    strategy: SplitStrategy,
    model: str,
    *,
    cut_at: str | None = None,
    cell: int = 2,
    positions: Literal["lower", "upper"] | None = None,
    **options: Any,
) -> tuple[str, dict[str, Any]]:
    """Return the key of `SPLITS` for a strategy's cut of a model, and the function's arguments.

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
