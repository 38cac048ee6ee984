"""`labels-cluster`: gradients, or smashed data, of samples of one class form clusters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.hints import Hints
from flwr_splitmix.attacks.images.label_leaks.gradient_leaks import (
    label_clusters,
    name_clusters,
    nearest_known,
)
from flwr_splitmix.attacks.images.labels_gradient import gradient_rows

_MAX_ROWS = {"smoke": 100, "cpu": 1000, "paper": 10_000}
"""Number of newest rows that are clustered, by scale, besides those of known labels."""


class LabelsCluster(Attack):
    """Clusters samples by their gradients if available, otherwise by their smashed data.

    Settings
    --------
    way
        "spectral": the label of the cluster, named after the known samples in it. "similarity":
        one score per class, the similarity to a known sample of it; of gradients that is
        `labels-gradient` with its leak "cosine".
    hints
        Known labels, by release and row: one of each class.

    Source: Liu and Lyu, "Clustering label inference attack against practical split learning",
    arXiv 2203.05222.
    """

    name = "labels-cluster"
    goal: ClassVar[Goal] = "labels"
    source = "arXiv 2203.05222"
    settings: ClassVar[tuple[Mapping[str, Any], ...]] = ({"way": "spectral"},)
    hinted = True

    def run(self, view: View) -> Guess:
        """Score or label the rows."""
        hints: Hints = self.setting.get("hints") or {}
        where, rows = self._rows(view, hints)
        classes = view.knowledge.num_classes
        place = {at: number for number, at in enumerate(where)}
        pairs = [(place[at], label) for at, label in hints.items() if at in place]
        if not pairs:
            raise NotApplicable(
                "labels-cluster needs at least one sample with a known label (hints)"
            )
        known_rows, labels = (torch.tensor(part) for part in zip(*pairs, strict=True))
        scores = nearest_known(rows, known_rows, labels, classes)
        if self.setting.get("way", "spectral") == "similarity":
            return Guess(scores, scores.max(1).values, where)
        named = name_clusters(
            label_clusters(rows, classes, seed=self.seed), known_rows, labels, classes
        )
        return Guess(named, scores.max(1).values, where)

    def _rows(self, view: View, hints: Hints) -> tuple[list[tuple[int, int]], Tensor]:
        """Return the newest rows, and those of known labels, which may be older."""
        most = _MAX_ROWS[self.budget.scale]
        where, parts = gradient_rows(view)
        if not parts:
            if "smashed data" not in view.available:
                raise NotApplicable(
                    f"the view of the adversary {view.adversary!r} has neither gradients nor "
                    "smashed data that could be clustered"
                )
            releases = list(enumerate(view.releases))
            where = [(n, row) for n, release in releases for row in range(len(release.smashed))]
            parts = [release.smashed.mean(1, keepdim=True) for _, release in releases]
        rows = torch.cat([part.flatten(1) for part in parts])
        newest = range(max(len(where) - most, 0), len(where))
        numbers = sorted({*newest, *(number for number, at in enumerate(where) if at in hints)})
        return [where[number] for number in numbers], rows[numbers]
