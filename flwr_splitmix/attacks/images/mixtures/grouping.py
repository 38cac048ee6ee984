"""Grouping of a mixture's patches by client, when all rows of a release share one mask."""

from __future__ import annotations

import torch
from torch import Tensor

from flwr_splitmix.attacks.images.embedding.inverse import CUTOFF
from flwr_splitmix.mixers import Mixer, Shuffled
from flwr_splitmix.mixers.wrapper import all_inside, layers


def agreement(owners: Tensor) -> Tensor:
    """Return how often two patches have the same owner, averaged over rows: (N, N).

    Parameters
    ----------
    owners
        Probabilities (b, N, k); the numbering of clients may differ from row to row.
    """
    return torch.einsum("bnk,bmk->nm", owners, owners) / len(owners)


def shared_directions(tokens: Tensor) -> Tensor:
    """Return the overlap of the directions in which tokens at two positions vary: (N, N), 0 to 1.

    All tokens of one patch embedding vary within its column space, whatever the images: no
    weights need to be known. Positions that do not vary give 0.

    Parameters
    ----------
    tokens
        (b, N, d), of one release: its rows share one mask. More rows, up to the number of pixels
        of a patch, show more of the column space.
    """
    wide = tokens.double().transpose(0, 1)
    wide = wide - wide.mean(1, keepdim=True)
    _, strengths, right = torch.linalg.svd(wide, full_matrices=False)
    significant = (strengths > CUTOFF * strengths.max()).to(wide)
    basis = right * significant[..., None]
    overlap = torch.einsum("nrd,msd->nmrs", basis, basis).square().sum((2, 3))
    rank = significant.sum(1)
    return overlap / torch.minimum(rank[:, None], rank[None]).clamp_min(1)


def cluster(alike: Tensor, k: int, seed: int) -> Tensor:
    """Divide positions into k groups by their similarity (N, N): int64 (N,).

    Raises
    ------
    ImportError
        Without scikit-learn (extra `attacks`).
    """
    from sklearn.cluster import SpectralClustering  # an extra that training does not need

    # Positions similar to none, such as blank ones, must be in some group too.
    table = alike.detach().double().cpu() + 1e-6
    spectral = SpectralClustering(k, affinity="precomputed", random_state=seed)
    return torch.from_numpy(spectral.fit_predict(((table + table.T) / 2).numpy())).long()


def moves_patches(mixer: Mixer) -> bool:
    """Return whether a mixer, or one that it wraps, puts patches out of their places."""
    return any(isinstance(layer, Shuffled) for layer in layers(mixer))


def rows_share_masks(mixer: Mixer) -> bool:
    """Return whether all rows of a release share a mask, with patches in their places."""
    return not any(isinstance(each, Shuffled) or each.mask_per_sample for each in all_inside(mixer))
