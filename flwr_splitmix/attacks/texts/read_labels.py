"""Label inference from a classifier's gradients in any U shape: two classes, by sign."""

from __future__ import annotations

import torch
from torch import Tensor


def read_labels(gradients: Tensor) -> Tensor:
    """Divide the texts of a batch by class, from the gradients that one client returns.

    Along the difference of the classifier's two class vectors, the gradient of the cross-entropy
    at a text's hidden states has opposite directions for the two labels. They show as the signs of
    the entries of the gradients' first singular vector. One known text, or the frequencies of the
    classes, reveal which side is which class.

    Parameters
    ----------
    gradients
        (b, T, d), or a step's (m, b, T, d) from a client of MixGuard.

    Returns
    -------
    bool (b,): the side of each text.

    Raises
    ------
    ValueError
        If there are fewer than two texts.

    Source: ours; for labels leaking from gradients of a split layer see Li et al. 2022 ("Label
    leakage and protection in two-party split learning").
    """
    if gradients.ndim not in (3, 4) or gradients.shape[-3] < 2:
        raise ValueError(
            f"gradients have shape {tuple(gradients.shape)}; they must be (b, T, d) or "
            "(m, b, T, d) of at least two texts"
        )
    texts = gradients.detach().double().cpu()
    rows = texts.flatten(1) if texts.ndim == 3 else texts.transpose(0, 1).flatten(1)
    sides: Tensor = torch.linalg.svd(rows, full_matrices=False).U[:, 0] > 0
    return sides
