"""Masks: the number and the positions of the patches that each member of a group keeps."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from flwr_splitmix.seeding import brief_generator
from flwr_splitmix.values import check_choice, real_number, whole_number
from flwr_splitmix.words import allowed_range, counted

Rounding = Literal["multinomial", "largest-remainder"]

MAX_ALPHA = 1e100
"""Largest concentration of a Dirichlet distribution; near 1e308, all drawn ratios would be 0."""


def sample_counts(
    n_patches: int,
    k: int,
    alpha: float | None,
    rng: np.random.Generator,
    *,
    rounding: Rounding = "multinomial",
    min_patches: int = 0,
) -> np.ndarray:
    """Draw how many of `n_patches` patches each of `k` members keeps.

    Parameters
    ----------
    alpha
        Concentration of the symmetric Dirichlet distribution of the mixing ratios; None (infinity)
        makes counts as even as possible, with the remainder going to random members.
    rounding
        How ratios become counts: "multinomial" draws them; "largest-remainder" floors them and
        gives the rest to the largest fractions, breaking ties at random.
    min_patches
        Patches that each member keeps in any case; the others are drawn.

    Returns
    -------
    int64 array of shape (k,) that sums to `n_patches`. A count may be zero.

    Raises
    ------
    ValueError
        If `k` < 1, `n_patches` < 1, `alpha` is not in its range, `k * min_patches` > `n_patches`,
        or `rounding` is unknown.

    Source: CutMixSL, section 3.2; DP-CutMixSL (workshop), section 2.
    """
    check_mask_options(alpha, rounding, min_patches)
    alpha = checked_alpha(alpha)
    if k < 1 or n_patches < 1:
        raise ValueError(f"k is {k} and n_patches is {n_patches}; both must be at least 1")
    free = n_patches - k * min_patches
    if free < 0:
        raise ValueError(
            f"min_patches (min-patches) is {min_patches}, but a group's {k} members share "
            f"{counted(n_patches, 'patch')}; {allowed_range(0, n_patches // k)}"
        )
    if alpha is None:
        counts = np.full(k, free // k)
        counts[rng.permutation(k)[: free % k]] += 1
    elif rounding == "multinomial":
        counts = rng.multinomial(free, rng.dirichlet(np.full(k, alpha)))
    else:
        exact = free * rng.dirichlet(np.full(k, alpha))
        counts = np.floor(exact).astype(np.int64)
        order = np.lexsort((rng.random(k), counts - exact))  # largest fraction first
        counts[order[: free - int(counts.sum())]] += 1
    return np.asarray(counts, dtype=np.int64) + min_patches


def sample_ratios(k: int, alpha: float | None, rng: np.random.Generator) -> np.ndarray:
    """Draw the mixing ratios of `k` members without rounding them to patches.

    Parameters
    ----------
    alpha
        Concentration of the symmetric Dirichlet distribution; None (infinity) gives 1/k to each.

    Returns
    -------
    float64 array of shape (k,) that sums to 1.

    Raises
    ------
    ValueError
        If `k` < 1 or `alpha` is not in its range.
    """
    alpha = checked_alpha(alpha)
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    return np.full(k, 1 / k) if alpha is None else rng.dirichlet(np.full(k, alpha))


def checked_alpha(alpha: float | None) -> float | None:
    """Return the concentration of a Dirichlet distribution as a float, or None.

    Raises
    ------
    ValueError
        For anything else.
    """
    if alpha is None:
        return None
    alpha = real_number("alpha", alpha)
    if alpha == np.inf:
        raise ValueError("alpha is inf; for even counts it must be None, which apps write as inf")
    if not 0 < alpha <= MAX_ALPHA:
        raise ValueError(
            f"alpha is {alpha}; it must be greater than 0 and at most {MAX_ALPHA:g}, or None for "
            "even counts"
        )
    return alpha


def check_mask_options(alpha: float | None, rounding: str, min_patches: int) -> None:
    """Raise ValueError if `sample_counts` cannot use the options."""
    checked_alpha(alpha)
    check_choice("rounding", rounding, get_args(Rounding))
    whole_number("min_patches", min_patches, least=0)


def patch_order(seed: int, n_patches: int, samples: int | None = None) -> np.ndarray:
    """Draw a uniform permutation of the patch positions; a seed gives the same on every machine.

    Returns
    -------
    int64 array of shape (n_patches,), or (samples, n_patches) with a permutation for each sample.
    """
    rng = brief_generator(seed)
    if samples is None:
        return np.asarray(rng.permutation(n_patches), dtype=np.int64)
    return np.argsort(rng.random_sample((samples, n_patches)), axis=1, kind="stable")
