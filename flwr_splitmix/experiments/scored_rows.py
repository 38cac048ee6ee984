"""The test examples on which cells are scored, the same for all of a size."""

from __future__ import annotations

import numpy as np

from flwr_splitmix.seeding import frozen_generator

_SEED = 2024


def rows_to_test(available: int, max_rows: int) -> np.ndarray | None:
    """Return the rows of a test set that are used, in its order: int64 (wanted,); None for all.

    Parameters
    ----------
    max_rows
        0 takes all.
    """
    if not max_rows or max_rows >= available:
        return None
    return np.sort(frozen_generator(_SEED).permutation(available)[:max_rows])
