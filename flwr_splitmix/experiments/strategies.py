"""The strategy of a cell: its options as arguments of the constructor, and a test of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from flwr_splitmix.experiments.baselines import BASELINES
from flwr_splitmix.experiments.cells import Cell, ExperimentError, OptionValues
from flwr_splitmix.privacy import GaussianNoise
from flwr_splitmix.strategies import STRATEGIES, SplitStrategy
from flwr_splitmix.strategies.option_trial import trial_strategy

_NOISE = {value.name for value in fields(GaussianNoise)}


def check_method(cell: Cell) -> None:
    """Raise ExperimentError if the cell's method does not exist."""
    if cell.method not in STRATEGIES and cell.method not in BASELINES:
        raise ExperimentError(
            f"unknown method {cell.method!r}; available: {', '.join([*STRATEGIES, *BASELINES])}"
        )


def options_of(pairs: OptionValues) -> dict[str, Any]:
    """Return a strategy's options, with those of noise as one `GaussianNoise`."""
    options: dict[str, Any] = {k: v for k, v in pairs if k not in _NOISE}
    if noise := {k: v for k, v in pairs if k in _NOISE}:
        options["noise"] = GaussianNoise.from_plain(noise)
    return options


def trial_of(cell: Cell) -> SplitStrategy:
    """Make the cell's strategy without a model, to query its needs.

    Raises
    ------
    ExperimentError
        If the method does not take the cell's options.
    ValueError
        If an option is invalid.
    """
    try:
        return trial_strategy(cell.method, options_of(cell.options))
    except TypeError as error:
        raise ExperimentError(f"{cell.method} cannot be made: {error}") from error
