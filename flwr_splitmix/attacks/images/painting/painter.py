"""The painting of patches that were not received, by Gaussians of public images."""

from __future__ import annotations

import torch
from torch import Tensor

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.embedding.noisy_reading import Errors
from flwr_splitmix.attacks.images.embedding.patches import to_patches
from flwr_splitmix.attacks.images.painting.gaussian import MAX_PIXELS, Gaussian, by_class
from flwr_splitmix.attacks.pictures import Pictures

MAX_NUMBERS = 2**27
"""Most numbers of all classes' covariances together: 1 GiB. With more, classes are not used."""


class Painter:
    """Gives patches that were not received their mean, given those that were.

    Patches that were received with errors have theirs as well, given all (a Wiener filter).

    Parameters
    ----------
    everything
        Fitted to images of all classes.
    by_class
        Fitted to each class's; empty if classes are not used.
    budget
        Once it is spent, the mean image is painted.
    """

    def __init__(
        self, everything: Gaussian, by_class: list[Gaussian], budget: Budget | None = None
    ) -> None:
        self.everything = everything
        self.own = by_class
        self.budget = budget or Budget()

    @classmethod
    def of(
        cls, public: Pictures, grid: tuple[int, int], classes: int, budget: Budget | None = None
    ) -> Painter | None:
        """Fit public images; None if they have more than `gaussian.MAX_PIXELS` numbers.

        Parameters
        ----------
        classes
            Number L of classes.
        """
        numbers = public.images[0].numel()
        if numbers > MAX_PIXELS:
            return None
        patches = to_patches(public.images, grid)
        if public.labels.ndim != 1 or classes * numbers**2 > MAX_NUMBERS:
            return cls(Gaussian.fit(patches), [], budget)
        return cls(*by_class(patches, public.labels, classes), budget)

    @property
    def classless(self) -> Painter:
        """The painter that does not use classes."""
        return Painter(self.everything, [], self.budget)

    def __call__(
        self,
        patches: Tensor,
        is_seen: Tensor,
        labels: Tensor | None = None,
        errors: Errors | None = None,
    ) -> Tensor:
        """Return images (b, N, P), float64, whose patches that were not seen are painted.

        Parameters
        ----------
        patches
            (b, N, P).
        is_seen
            bool (b, N).
        labels
            (b, L): how likely each class is before anything is seen; None: all equally. If classes
            are used, each is weighted by how well it explains what was seen.
        errors
            Errors of the seen patches; None if there are none.
        """
        painted, is_seen = patches.double().cpu().clone(), is_seen.cpu()
        prior = painted.new_ones(len(painted), len(self.own)) if labels is None else labels
        kinds = torch.zeros_like(is_seen, dtype=torch.long) if errors is None else errors.kinds
        patterns, which = torch.unique(torch.where(is_seen, kinds, -1), dim=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            rows, mask = which == number, pattern >= 0
            if mask.all() and errors is None:
                continue
            apart = None if errors is None else errors.covariances[pattern.clamp_min(0)]
            if self.budget.must_end():
                painted[rows] = torch.where(mask[:, None], painted[rows], self.everything.mean)
            elif self.own:
                painted[rows] = self._by_class(painted[rows], mask, prior[rows], apart)
            else:
                painted[rows] = self.everything.completed(painted[rows], mask, apart)[0]
        return painted

    def _by_class(
        self, patches: Tensor, mask: Tensor, labels: Tensor, errors: Tensor | None
    ) -> Tensor:
        """Return the mean over classes, each weighted by its probability given what was seen."""
        scores = labels.log()
        images = patches.new_zeros(labels.shape[1], *patches.shape)
        for label in labels.any(0).nonzero()[:, 0].tolist():
            rows = labels[:, label] > 0
            images[label, rows], density = self.own[label].completed(patches[rows], mask, errors)
            scores[rows, label] += density
        return torch.einsum("bl,lbnp->bnp", scores.softmax(1), images)
