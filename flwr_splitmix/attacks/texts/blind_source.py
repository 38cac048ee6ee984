"""Second break of MixGuard: messages are mixtures of independent sources and can be unmixed."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from flwr_splitmix.extras import needed_for

RANK_TOLERANCE = 1e-5
"""Least relative singular value that counts as a source rather than as rounding."""

GAUSSIAN_LOG_COSH = 0.374567
"""Mean of log cosh over a standard normal variable."""


def blind_source(
    messages: Tensor, *, common: Tensor | None = None, seed: int = 0, max_iter: int = 500
) -> Tensor:
    """Separate linear mixtures into independent components, without knowing the mixing.

    Every entry of the hidden states is one observation of m mixtures. Hidden states of text are
    far from Gaussian; sums of several are closer to it. With more sources than messages, the
    secret's constraint leaves one direction pure, the target's, which is still found.

    Parameters
    ----------
    messages
        (m, ...), mixtures of one set of sources: a batch under one secret, or one sample.
    common
        (...), what all texts share: an attacker's own mean over public texts. It is projected out
        before the separation, but not from the result.
    seed
        For FastICA's initial guess.
    max_iter
        Most iterations; the result is then used as it is.

    Returns
    -------
    float64 (n, ...), n <= m the messages' rank: components of zero mean and unit variance, each up
    to sign, the least Gaussian first. An attacker can choose by that order, as a mixture is closer
    to Gaussian than its parts. It does not distinguish the target from other pure sources.

    Raises
    ------
    ValueError
        If there are fewer than two messages, they are constant, or `common` has another shape.
    ImportError
        Without scikit-learn (extra `attacks`).

    Source: FastICA, Hyvärinen and Oja 2000, with the log cosh contrast; measured in
    docs/mixguard.md, "Attacks in detail".
    """
    with needed_for("FastICA"):
        from sklearn.decomposition import FastICA
        from sklearn.exceptions import ConvergenceWarning

    if messages.ndim < 2 or messages.shape[0] < 2:
        raise ValueError(
            f"messages have shape {tuple(messages.shape)}; there must be at least two, (m, ...)"
        )
    centred = _centred(messages.flatten(1))
    observed = centred
    if common is not None:
        if common.shape != messages.shape[1:]:
            raise ValueError(
                f"common has shape {tuple(common.shape)}; it must be that of a message, "
                f"{tuple(messages.shape[1:])}"
            )
        shared = torch.nn.functional.normalize(_centred(common.flatten()), dim=0)
        observed = centred - (centred @ shared)[:, None] * shared
    strengths = torch.linalg.svdvals(observed)
    count = int((strengths > RANK_TOLERANCE * centred.norm()).sum())
    if not count:
        raise ValueError("the messages are constant; there is nothing to separate")
    ica = FastICA(count, whiten="unit-variance", random_state=seed, max_iter=max_iter)
    with warnings.catch_warnings():
        # With more sources than messages there is no exact solution; use what there is.
        warnings.simplefilter("ignore", ConvergenceWarning)
        sources = torch.from_numpy(ica.fit_transform(observed.T.numpy()).T.copy())
    components = torch.from_numpy(ica.components_) @ centred
    components = components / components.std(1, keepdim=True)
    order = _negentropy(sources).argsort(descending=True)
    return components[order].reshape(count, *messages.shape[1:])


def separate_gradients(messages: Tensor, gradients: Tensor, *, seed: int = 0) -> Tensor:
    """Decode every source with weights obtained by separating the gradients.

    This attacks `gradients = "all-sources"`: the gradients `sum_i R_il g_i` are mixtures too, and
    the ratios of source i in them are the weights that decode source i from the messages.

    Parameters
    ----------
    messages, gradients
        (m, b, T, d), one client's uploads in one step.

    Returns
    -------
    float64 (n, b, T, d), n <= m: estimates of sources, in no order, each up to scale and sign.

    Raises
    ------
    ValueError
        As in `blind_source`, or if shapes differ.
    """
    if messages.shape != gradients.shape:
        raise ValueError(
            f"messages and gradients have shapes {tuple(messages.shape)} and "
            f"{tuple(gradients.shape)}; they must be the same"
        )
    components = blind_source(gradients, seed=seed).flatten(1)
    ratios = gradients.detach().double().cpu().flatten(1) @ components.T  # components: mean 0
    return torch.einsum("mn,m...->n...", ratios, messages.detach().double().cpu())


def _centred(rows: Tensor) -> Tensor:
    wide = rows.detach().double().cpu()
    return wide - wide.mean(-1, keepdim=True)


def _negentropy(rows: Tensor) -> Tensor:
    """Return how far rows (n, N) of unit variance are from Gaussian, 0 if Gaussian: (n,)."""
    log_cosh = rows.abs() + torch.nn.functional.softplus(-2 * rows.abs()) - math.log(2)
    return (log_cosh.mean(1) - GAUSSIAN_LOG_COSH).square()
