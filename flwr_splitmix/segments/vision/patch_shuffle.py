"""Patch and batch shuffling with orders known only to the client, and their number."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from flwr_splitmix.seeding import secret_uniform


class PatchShuffle(nn.Module):
    """Shuffle of patches (b, N, d) within each image and, for `kappa` < 1, across the batch.

    In training mode, each image keeps K = floor(kappa N) patches, chosen at random; the others
    are pooled, permuted and dealt back, N - K to each image, which is then shuffled. With
    `kappa` = 1, in evaluation mode and for a batch of one image, patches are shuffled only within
    their image, so that whole images are evaluated.

    The orders are the client's secret. They come from the operating system's random bytes, not
    from a seeded generator: a seed of 64 bits could yield at most 2 x 10^19 of the 10^365 orders
    of 196 patches.

    Parameters
    ----------
    kappa
        Fraction of its patches that an image keeps, in (0, 1].

    Attributes
    ----------
    across_batch
        Whether patches move from one image to another.

    Raises
    ------
    ValueError
        If `kappa` is not in (0, 1].

    Source: Patch Shuffling, algorithms 1 and 2.
    """

    def __init__(self, kappa: float = 1.0) -> None:
        super().__init__()
        if not 0 < kappa <= 1:
            raise ValueError(f"kappa is {kappa}; it must be greater than 0 and at most 1")
        self.kappa = kappa
        self.across_batch = kappa < 1

    def forward(self, patches: Tensor) -> Tensor:  # noqa: D102
        b, n, _ = patches.shape
        n_kept = patches_kept(n, self.kappa) if self.training else n
        return patches.flatten(0, 1)[draw_order(b, n, n_kept).to(patches.device)]


def draw_order(batch: int, n_patches: int, kept: int) -> Tensor:
    """Draw a random order of a batch's patches in which each image keeps `kept` of its own.

    Returns
    -------
    int64 tensor (batch, n_patches) on the CPU: the patch in each place, a permutation of 0 to
    batch * n_patches - 1, where the patches are numbered image by image.
    """
    first = torch.arange(batch).unsqueeze(1) * n_patches
    order = _permutations(batch, n_patches) + first
    if kept == n_patches:
        return order
    pool = order[:, kept:].flatten()
    dealt = pool[_permutations(1, len(pool))[0]].view(batch, -1)
    order = torch.cat([order[:, :kept], dealt], dim=1)
    return order.gather(1, _permutations(batch, n_patches))


def patches_kept(n_patches: int, kappa: float) -> int:
    """Return K = floor(kappa N)."""
    # 1e-9 against rounding: 0.29 * 100 is 28.999999999999996.
    return math.floor(kappa * n_patches + 1e-9)


def log10_search_space(n_patches: int, kappa: float = 1.0, batch: int = 1) -> float:
    """Return log10 of the number of orders that an attacker would have to try.

    Information in the patches themselves, such as edges that fit together, is not considered.

    Parameters
    ----------
    n_patches
        Number of patches N per image; with the defaults, the number of orders is N!.
    kappa, batch
        For batch shuffling: the fraction kept, and the number of images B shuffled together.

    Source: Patch Shuffling, equation 7.
    """
    n_kept = patches_kept(n_patches, kappa)
    moved = n_patches - n_kept
    # binomial(N, K) K! = N! / (N - K)!
    chosen = math.lgamma(n_patches + 1) - math.lgamma(moved + 1)
    return (batch * chosen + math.lgamma(batch * moved + 1)) / math.log(10)


def log10_orders_with_target(n_patches: int, kappa: float, batch: int) -> float:
    """Return log10 of the number of orders in which one given image is in its original order.

    The parameters are those of `log10_search_space`.

    Source: Patch Shuffling, equation 8.
    """
    return log10_search_space(n_patches, kappa, batch - 1)


def _permutations(number: int, length: int) -> Tensor:
    return secret_uniform((number, length)).argsort(dim=1)
