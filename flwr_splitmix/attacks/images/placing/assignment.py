"""The best one-to-one assignment of tokens to places."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def assign(scores: Tensor) -> Tensor:
    """Assign the tokens of each sample to distinct places, maximising the sum of scores.

    Parameters
    ----------
    scores
        (b, N, N): score of token i at place j.

    Returns
    -------
    int64 (b, N), on the CPU: the place of each token.

    Raises
    ------
    ImportError
        Without SciPy (extra `attacks`).

    Source: Kuhn's Hungarian method, by SciPy.
    """
    from scipy.optimize import linear_sum_assignment  # an extra that training does not need

    table = scores.detach().double().cpu().numpy()
    places = [linear_sum_assignment(sample, maximize=True)[1] for sample in table]
    return torch.from_numpy(np.asarray(places, dtype=np.int64).reshape(table.shape[:2]))
