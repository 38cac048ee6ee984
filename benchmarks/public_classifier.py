"""Labels that a server reads from smashed data by a classifier of public images."""

from __future__ import annotations

import torch
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import Tensor, nn

COMPONENTS = 64
"""Principal components of the smashed data that the classifier looks at."""


class PublicClassifier:
    """A support vector machine on what a lower segment, or a head, makes of public images.

    Parameters
    ----------
    lower
        The segment as the server knows it: it sent the first weights.
    images, labels
        Public images, float32 (n, C, H, W) as clients normalise theirs, and their classes.
    """

    def __init__(self, lower: nn.Module, images: Tensor, labels: Tensor) -> None:
        lower.eval()
        with torch.no_grad():
            states = lower(images).flatten(1).numpy()
        components = min(COMPONENTS, *states.shape)
        self._fitted = make_pipeline(
            PCA(components, whiten=True, random_state=0), StandardScaler(), SVC()
        ).fit(states, labels.numpy())

    def __call__(self, smashed: Tensor) -> Tensor:
        """Return the classes, int64 (b,), of smashed data (b, T, d)."""
        return torch.from_numpy(self._fitted.predict(smashed.flatten(1).numpy()))
