"""Checks of `batch-size`, `learns` and the strategy's own keys in the U shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr_splitmix.clients.ushape.ends import Learns
from flwr_splitmix.strategies import USHAPE_STRATEGIES


def check_batch(strategy: str, batch_size: int, *, texts: bool) -> None:
    """Raise ValueError if the strategy does nothing in batches of so few texts, or images."""
    least = USHAPE_STRATEGIES[strategy].hiding.least_batch(texts=texts)
    if batch_size < least:
        raise ValueError(
            f"batch-size is {batch_size}, but strategy is {strategy!r}, which works only among "
            f"several examples of a batch; it must be at least {least}"
        )


def check_learns(strategy: str, learns: Learns) -> None:
    """Raise ValueError if the strategy works only by training heads, and they do not learn."""
    if learns == "tail" and USHAPE_STRATEGIES[strategy].hiding.teaches_head:
        raise ValueError(
            f"learns is 'tail', but strategy is {strategy!r}, which works only by training heads; "
            "use 'all' with it"
        )


def check_options(strategy: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError if the strategy's own options, by the names of arguments, do not fit."""
    try:
        USHAPE_STRATEGIES[strategy].hiding.check_options(options)
    except ValueError as error:  # keys say 'none', and `read` puts their names for those of options
        raise ValueError(str(error).replace("None", "'none'")) from None
