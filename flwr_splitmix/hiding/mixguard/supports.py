"""Division of public texts: some are supports, the calibrator learns on the others."""

from __future__ import annotations

import numpy as np
from torch.utils.data import Dataset

from flwr_splitmix.data.examples import Example, ExampleSet, fetch
from flwr_splitmix.data.masked_batch import NOTHING
from flwr_splitmix.words import counted

_AT_ONCE = 64
"""Texts that are read at once."""


class WithoutFirst(Dataset[Example]):
    """A data set without its first examples."""

    def __init__(self, data: ExampleSet, first: int) -> None:
        self.data, self.first = data, first

    def __len__(self) -> int:
        return len(self.data) - self.first  # type: ignore[arg-type]

    def batch(self, indices: np.ndarray) -> Example:
        """Return the examples at `indices`, counted from the first remaining one."""
        return fetch(self.data, indices + self.first)


def divide(public: ExampleSet, supports: int) -> tuple[int, ExampleSet]:
    """Return the number of first public texts used as supports, and the calibrator's texts.

    Parameters
    ----------
    supports
        Number of texts used as supports only; 0 uses all texts for both.

    Raises
    ------
    ValueError
        If none is left to calibrate on.
    """
    number = len(public)  # type: ignore[arg-type]
    if not supports:
        return number, public
    if supports >= number:
        raise ValueError(
            f"support_texts is {supports}, of {counted(number, 'public text')}; at least one must "
            "be left to calibrate on"
        )
    return supports, WithoutFirst(public, supports)


def distinct_texts(public: ExampleSet, first: int, enough: int) -> int:
    """Return how many distinct texts are among the `first` ones, and `enough` if they are more."""
    distinct: set[tuple[float, ...]] = set()
    for begin in range(0, first, _AT_ONCE):
        inputs, _ = fetch(public, np.arange(begin, min(begin + _AT_ONCE, first)))
        distinct |= {tuple(text[text != NOTHING].tolist()) for text in inputs}
        if len(distinct) >= enough:
            return enough
    return len(distinct)
