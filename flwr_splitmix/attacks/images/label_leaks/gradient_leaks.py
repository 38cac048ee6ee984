"""Label leaks of cut-layer gradients: their norms, their directions, their clusters."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def norm_leak(gradients: Tensor) -> Tensor:
    """Return the Euclidean norm of each sample's gradient: (b, ...) to float64 (b,).

    Samples predicted with confidence have small gradients, and confidence differs between
    classes.

    Source: Li et al., "Label leakage and protection in two-party split learning", section 3.
    """
    norms: Tensor = torch.linalg.vector_norm(gradients.detach().flatten(1).double(), dim=1)
    return norms


def cosine_leak(gradients: Tensor, references: Tensor) -> Tensor:
    """Return the cosine of each sample's gradient with that of a known sample.

    Parameters
    ----------
    gradients
        (b, ...).
    references
        (...), gradient of one sample with known label, or (c, ...), of several.

    Returns
    -------
    Tensor
        float64 (b,), or (b, c).

    Source: Li et al., as above.
    """
    rows = gradients.detach().flatten(1).double()
    is_single = references.ndim == gradients.ndim - 1
    others = references.detach().reshape(1 if is_single else len(references), -1).double()
    cosines = F.normalize(rows, dim=1) @ F.normalize(others, dim=1).mT
    return cosines[:, 0] if is_single else cosines


def label_clusters(rows: Tensor, classes: int, *, seed: int) -> Tensor:
    """Divide samples into as many clusters as there are classes, by the directions of their rows.

    Spectral clustering of the cosine similarities for at most 1,000 rows, k-means of the
    directions for more.

    Parameters
    ----------
    rows
        (n, ...) gradients, or activations.

    Returns
    -------
    Tensor
        int64 (n,), clusters in 0..classes-1.

    Source: Liu and Lyu, "Clustering label inference attack against practical split learning",
    arXiv 2203.05222.
    """
    from sklearn.cluster import KMeans, SpectralClustering

    directions = F.normalize(_narrow(rows), dim=1).numpy()
    clusters = min(classes, len(directions))
    if len(directions) <= 1000:
        # Opposite directions have the least similarity: 0.
        similarity = np.clip((1 + directions @ directions.T) / 2, 0, 1)
        method = SpectralClustering(clusters, affinity="precomputed", random_state=seed)
        return torch.from_numpy(method.fit_predict(similarity)).long()
    method = KMeans(clusters, n_init=4, random_state=seed)
    return torch.from_numpy(method.fit_predict(directions)).long()


def name_clusters(clusters: Tensor, known_samples: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Name clusters after the samples in them whose labels are known.

    Parameters
    ----------
    clusters
        int64 (n,).
    known_samples, labels
        int64 (c,): indices of known samples, and their labels. A cluster without a known sample
        is named after a class not yet used.

    Returns
    -------
    Tensor
        int64 (n,): a label for each sample.
    """
    from scipy.optimize import linear_sum_assignment

    count = max(int(clusters.max()) + 1, classes)
    votes = np.zeros((count, classes))
    np.add.at(votes, (clusters[known_samples].numpy(), labels.numpy()), 1.0)
    names = np.zeros(count, np.int64)
    names[votes.any(1)] = votes[votes.any(1)].argmax(1)
    rows, columns = linear_sum_assignment(-votes)
    for row, column in zip(rows, columns, strict=True):
        if not votes[row].any():
            names[row] = column
    return torch.from_numpy(names)[clusters]


def regrouped(rows: Tensor, labels: Tensor, classes: int, *, window: int = 150) -> Tensor:
    """Correct labels by the gradients' directions: int64 (n,).

    Rows are taken window by window, so that weights change little within one. Each gets the class
    whose rows have the nearest mean direction, again and again. If this moves half of a window's
    rows or more, directions reveal too little there, and its labels stay as they were.

    Parameters
    ----------
    rows
        (n, ...) gradients, oldest first.
    labels
        int64 (n,): labels, most of which are right.
    """
    return torch.cat(
        [
            _regrouped(F.normalize(part.detach().flatten(1).double(), dim=1), part_labels, classes)
            for part, part_labels in zip(
                torch.split(rows, window), torch.split(labels, window), strict=True
            )
        ]
    )


def _regrouped(directions: Tensor, labels: Tensor, classes: int) -> Tensor:
    moved = labels
    for _ in range(5):
        groups = F.one_hot(moved, classes).double()
        moved = (directions @ F.normalize(groups.mT @ directions, dim=1).mT).argmax(1)
    return moved if bool((moved == labels).double().mean() > 0.5) else labels


def nearest_known(rows: Tensor, known_samples: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Score classes by the similarity of each sample to known samples: float64 (n, classes).

    The score of a class is the largest cosine with a known sample of it; -1 if none is known.
    """
    cosines = cosine_leak(rows, rows[known_samples])
    scores = torch.full((len(rows), classes), -1.0, dtype=torch.float64)
    for column, label in enumerate(labels.tolist()):
        scores[:, label] = torch.maximum(scores[:, label], cosines[:, column])
    return scores


def _narrow(rows: Tensor, width: int = 128) -> Tensor:
    """Return rows projected onto their leading directions: clustering in 12,000 is slow."""
    flat = rows.detach().flatten(1).double()
    if min(flat.shape) <= width:
        return flat
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(flat.shape[1], width, dtype=torch.float64, generator=generator)
    basis, _ = torch.linalg.qr(flat.mT @ (flat @ probe))
    narrowed: Tensor = flat @ basis
    return narrowed
