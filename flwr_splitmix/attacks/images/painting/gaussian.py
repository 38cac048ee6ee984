"""A Gaussian of public images, which predicts some patches of an image from the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

MAX_PIXELS = 4096
"""Most numbers of an image: the covariance of more takes too much memory."""

RIDGE = 1e-3
"""Added to every variance, of pixels from 0 to 1, so that few images suffice."""


@dataclass(frozen=True)
class Gaussian:
    """Mean and covariance of images cut into patches.

    Parameters
    ----------
    mean
        float64 (N, P).
    covariance
        float64 (N P, N P), positive definite.
    """

    mean: Tensor
    covariance: Tensor

    @classmethod
    def fit(cls, patches: Tensor, *, shared: Self | None = None, own_weight: float = 0.7) -> Self:
        """Fit images (n, N, P).

        Parameters
        ----------
        shared
            Of images of all classes, if these are of one class, which has few of them: the
            covariance becomes `own_weight` times theirs, and for the rest that of `shared`.
        own_weight
            In 0..1.

        Raises
        ------
        ValueError
            If an image has more than `MAX_PIXELS` numbers.
        """
        flat = patches.double().cpu().flatten(1)
        if flat.shape[1] > MAX_PIXELS:
            raise ValueError(f"images of {flat.shape[1]} numbers; at most {MAX_PIXELS} are fitted")
        mean = flat.mean(0)
        apart = flat - mean
        covariance = apart.T @ apart / len(flat)
        if shared is not None:
            covariance = own_weight * covariance + (1 - own_weight) * shared.covariance
        covariance = covariance + RIDGE * torch.eye(len(mean), dtype=mean.dtype)
        return cls(mean.reshape(patches.shape[1:]), covariance)

    def completed(
        self, patches: Tensor, mask: Tensor, errors: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the means of images of which the same patches were seen, and how likely these are.

        Parameters
        ----------
        patches
            float64 (b, N, P).
        mask
            bool (N,).
        errors
            float64 (N, P, P): covariances of the errors of patches that were seen; None if these
            are exact, and so stay as they are.

        Returns
        -------
        float64 (b, N, P), and float64 (b,): the logarithm of the density of what was seen, without
        the constant that all Gaussians of as many numbers share.
        """
        in_mask = mask[:, None].expand(self.mean.shape).flatten()
        mean, flat = self.mean.flatten(), patches.flatten(1).clone()
        flat[:, ~in_mask] = mean[~in_mask]
        if not in_mask.any():
            return flat.reshape(patches.shape), flat.new_zeros(len(flat))
        away = flat[:, in_mask] - mean[in_mask]
        among = self.covariance[in_mask]
        covariance = among[:, in_mask]
        if errors is not None:
            seen_errors = errors[mask]
            blocks = covariance.view(*seen_errors.shape[:2], *seen_errors.shape[:2]).diagonal(
                dim1=0, dim2=2
            )
            blocks += seen_errors.permute(1, 2, 0)
        root = torch.linalg.cholesky(covariance)
        weighed = torch.cholesky_solve(away.T, root).T
        if errors is None:
            flat[:, ~in_mask] += weighed @ among[:, ~in_mask]
        else:
            flat = mean + weighed @ among
        density = -(away * weighed).sum(1) / 2 - root.diagonal().log().sum()
        return flat.reshape(patches.shape), density

    def filled(self, patches: Tensor, places: Tensor) -> tuple[Tensor, float]:
        """Return the image of some patches, (m, P), at places, int64 (m,), as `completed` does.

        Returns
        -------
        float64 (N, P), and the logarithm of the patches' density, without constants.
        """
        mask = torch.zeros(len(self.mean), dtype=torch.bool)
        mask[places] = True
        image = self.mean.clone()
        image[places] = patches
        images, density = self.completed(image[None], mask)
        return images[0], float(density)


def by_class(patches: Tensor, labels: Tensor, classes: int) -> tuple[Gaussian, list[Gaussian]]:
    """Fit all images (n, N, P), and those of each class; labels are int64 (n,).

    A class without images has the Gaussian of all.
    """
    everything = Gaussian.fit(patches)
    class_gaussians = []
    for label in range(classes):
        rows = labels == label
        class_gaussians.append(
            Gaussian.fit(patches[rows], shared=everything) if rows.any() else everything
        )
    return everything, class_gaussians
