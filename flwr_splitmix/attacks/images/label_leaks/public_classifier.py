"""A classifier of smashed data, fitted to releases of public images with labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

COMPONENTS = 64
"""Most principal components of the smashed data that are looked at."""

MIN_VARIANCE = 1e-7
"""Least variance of a component, as a fraction of the first one's: smaller ones are rounding."""

WAYS: tuple[Mapping[str, Any], ...] = (
    {"pooled": False, "cost": 1.0},
    {"pooled": False, "cost": 10.0},
    {"pooled": True, "cost": 1.0},
    {"pooled": True, "cost": 10.0},
)
"""Settings compared on held-out public images: all tokens or their mean, and the machine's C."""


class PublicClassifier:
    """A support vector machine with Gaussian kernel on whitened principal components.

    Parameters
    ----------
    rows
        float (n, prefix + N, d): smashed data of public images.
    labels
        int64 (n,): their classes, at least two.
    pooled
        Whether it classifies the mean over tokens, which no order of these changes.
    cost
        C of the machine.
    """

    def __init__(self, rows: Tensor, labels: Tensor, *, pooled: bool, cost: float) -> None:
        from sklearn.decomposition import PCA  # an extra that training does not need
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
        from sklearn.svm import SVC

        self._pooled = pooled
        features = self._features(rows)
        self._axes = PCA(min(COMPONENTS, *features.shape), random_state=0).fit(features)
        strengths = self._axes.explained_variance_
        self._component_count = max(1, int((strengths > MIN_VARIANCE * strengths[0]).sum()))
        machine = SVC(C=cost, decision_function_shape="ovr")
        self._machine = make_pipeline(StandardScaler(), machine)
        self._machine.fit(self._components(features), labels.numpy())

    def _features(self, rows: Tensor) -> np.ndarray:
        features = rows.float().mean(1) if self._pooled else rows.float().flatten(1)
        return np.asarray(features.cpu().numpy())

    def _components(self, features: np.ndarray) -> np.ndarray:
        return np.asarray(self._axes.transform(features)[:, : self._component_count])

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classes, int64 (b,), of smashed data, and how sure each is, float32 (b,).

        It is as sure as the score of the class is ahead of the best of the others; below 0 where
        pairs of classes, which decide, disagree with the scores.
        """
        components = self._components(self._features(rows))
        classes = torch.from_numpy(self._machine.predict(components)).long()
        scores = torch.from_numpy(self._machine.decision_function(components)).float()
        if scores.dim() == 1:  # of two classes there is one score
            return classes, scores.abs()
        place = torch.from_numpy(np.searchsorted(self._machine.classes_, classes.numpy()))[:, None]
        others = scores.scatter(1, place, -torch.inf).amax(1)
        return classes, scores.gather(1, place)[:, 0] - others
