"""`labels-peer`: a member of a mixing group reads the other member's labels from its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.images.labels_gradient import gradient_rows

WINDOW = 900
"""Rows explained together: the upper segment changes, and with it the meaning of gradients."""
FOLDS = 5
"""Parts of the releases, each of which is left out once to compare settings."""
ROUNDS = 3
"""Times that class directions and the other's labels are estimated from each other."""
RIDGE = 0.5
"""Added to the rows that each class has, so that a class without rows has a direction, too."""

FORMS = [(unit, most) for unit in (False, True) for most in (60, 30, 15)]
"""Whether gradients are scaled to norm 1, and most principal components that are kept."""


class LabelsPeer(Attack):
    """Reads the label of the other image in a mixture, without any known label of the other's.

    The upper segment learns a mixture's label: the member's own class with its mixing ratio, and
    the other's with the rest. The gradient that returns is about a linear map of that label. The
    member knows its own part of it, so regression on that gives a direction for each class, and
    what is left of a gradient points in that of the other's class. The regression is repeated with
    the labels read so far. The noise of gradients differs greatly by direction, so they are
    compared by their Mahalanobis distance.

    The form of gradients (`FORMS`) is the one in which the member's own labels, as if unknown, are
    read best from releases that were left out. Nothing is learned from public images.

    Mixtures of more than two are not attacked: shares of the others are unknown to a member.
    """

    name = "labels-peer"
    goal: ClassVar[Goal] = "labels"
    needs = frozenset({"gradients", "own labels"})
    source = "ours"

    def check(self, view: View) -> None:
        """Raise NotApplicable without gradients and own labels, or if more than two are mixed."""
        super().check(view)
        if view.knowledge.k != 2:
            raise NotApplicable(
                f"{self.name} knows one of two labels in a mixture, and {view.knowledge.method} "
                f"mixes {view.knowledge.k} clients, whose shares no other member knows"
            )

    def run(self, view: View) -> Guess:
        """Score the other's classes, of every row that has a gradient."""
        windows = _windows(_rows(view))
        scores, where = [], []
        for number in self.budget.steps(len(windows), "releases, the newest first"):
            rows = windows[-1 - number]
            rows = max((rows.in_form(*form) for form in FORMS), key=_own_labels_read)
            scores.append(_Directions.of(rows).of_other(rows, rows.own_labels).log_softmax(1))
            where += rows.where
        values = torch.cat(scores)
        return Guess(values, values.max(1).values, where)


@dataclass(frozen=True)
class _Rows:
    """Gradients of mixtures with one member's part of their labels.

    Parameters
    ----------
    where
        (release, row) of each.
    gradients
        float64 (n, d).
    own_labels
        float64 (n, L): the member's own labels, one-hot.
    lam
        float64 (n, 1): the member's mixing ratio.
    """

    where: list[tuple[int, int]]
    gradients: Tensor
    own_labels: Tensor
    lam: Tensor

    def take(self, positions: Tensor) -> _Rows:
        """Return some rows: positions, int64 (m,)."""
        where = [self.where[number] for number in positions.tolist()]
        return _Rows(
            where, self.gradients[positions], self.own_labels[positions], self.lam[positions]
        )

    @property
    def releases(self) -> Tensor:
        """The release of each row, counted from 0 among those that are here: int64 (n,)."""
        releases = sorted({release for release, _ in self.where})
        number = {release: n for n, release in enumerate(releases)}
        return torch.tensor([number[release] for release, _ in self.where])

    def in_form(self, unit: bool, most: int) -> _Rows:
        """Return the rows with principal components of their gradients: see `FORMS`."""
        x = F.normalize(self.gradients, dim=1) if unit else self.gradients
        x = x - x.mean(0)
        x = x / x.square().sum(1).mean().sqrt().clamp_min(torch.finfo(x.dtype).tiny)
        left, sizes, _ = torch.linalg.svd(x, full_matrices=False)
        apart = int((sizes > 1e-9 * sizes[0]).sum())
        count = max(1, min(most, len(x) // 3, apart))
        return _Rows(self.where, left[:, :count] * sizes[:count], self.own_labels, self.lam)


@dataclass(frozen=True)
class _Directions:
    """The direction of each class in gradients, and how the noise about them is whitened.

    Parameters
    ----------
    classes
        float64 (L, d), of whitened gradients.
    whitening
        float64 (d, d): gradients times this have noise of equal size in all directions.
    """

    classes: Tensor
    whitening: Tensor

    @classmethod
    def of(cls, rows: _Rows) -> _Directions:
        """Estimate directions and the other's labels from each other, `ROUNDS` times."""
        count = rows.own_labels.shape[1]
        other = torch.full_like(rows.own_labels, 1 / count)
        for _ in range(ROUNDS):
            labels = rows.lam * rows.own_labels + (1 - rows.lam) * other
            ridge = RIDGE * torch.eye(count, dtype=labels.dtype)
            slopes = torch.linalg.solve(labels.T @ labels + ridge, labels.T @ rows.gradients)
            residuals = rows.gradients - labels @ slopes
            noise = residuals.T @ residuals / len(residuals)
            sizes, axes = torch.linalg.eigh(noise)
            least = 1e-9 * noise.trace().clamp_min(1e-9)
            whitening = axes * sizes.clamp_min(least).rsqrt()
            directions = cls(slopes @ whitening, whitening)
            other = directions.of_other(rows, rows.own_labels).softmax(1)
        return directions

    def of_other(self, rows: _Rows, own_labels: Tensor) -> Tensor:
        """Return log-likelihoods of the other's classes if the member's labels are these: (n, L).

        Parameters
        ----------
        own_labels
            float64 (n, L) or (1, L), one-hot.
        """
        residuals = rows.gradients @ self.whitening - rows.lam * (own_labels @ self.classes)
        weight = 1 - rows.lam
        apart = (
            residuals.square().sum(1, keepdim=True)
            - 2 * weight * (residuals @ self.classes.T)
            + weight.square() * self.classes.square().sum(1)
        )
        return -apart / 2

    def of_own(self, rows: _Rows) -> Tensor:
        """Return log-likelihoods of the member's own classes, as if unknown: (n, L)."""
        one_hot = torch.eye(len(self.classes), dtype=self.classes.dtype)
        log_likelihoods = [self.of_other(rows, label[None]).logsumexp(1) for label in one_hot]
        return torch.stack(log_likelihoods, dim=1)


def _own_labels_read(rows: _Rows) -> float:
    """Return the share of own labels that are read from releases that were left out."""
    folds, read = rows.releases % FOLDS, 0
    for fold in range(FOLDS):
        out = (folds == fold).nonzero()[:, 0]
        rest = (folds != fold).nonzero()[:, 0]
        if len(out) and len(rest):
            left_out = rows.take(out)
            guesses = _Directions.of(rows.take(rest)).of_own(left_out).argmax(1)
            read += int((guesses == left_out.own_labels.argmax(1)).sum())
    return read / len(rows.where)


def _rows(view: View) -> _Rows:
    """Return the rows of a member's view that have gradients."""
    where, gradients = gradient_rows(view)
    own_labels, lam = [], []
    for release in view.releases:
        if release.gradient is not None:
            assert release.own_labels is not None
            assert release.lam is not None
            own_labels.append(F.one_hot(release.own_labels, view.knowledge.num_classes).double())
            lam.append(torch.full((len(release.own_labels), 1), release.lam).double())
    summed = torch.cat([part.double().sum(1) for part in gradients])
    return _Rows(where, summed, torch.cat(own_labels), torch.cat(lam))


def _windows(rows: _Rows) -> Sequence[_Rows]:
    """Divide rows, by release, into equal windows of about `WINDOW` rows, oldest first."""
    releases = rows.releases
    count = max(1, round(len(releases) / WINDOW))
    parts = np.array_split(np.arange(int(releases.max()) + 1), count)
    return [
        rows.take(torch.isin(releases, torch.from_numpy(part)).nonzero()[:, 0]) for part in parts
    ]
