"""Patches behind shuffled tokens, read one by one, and put in their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.images.embedding.inverse import CUTOFF
from flwr_splitmix.attacks.images.embedding.patches import (
    grid_of,
    patch_size,
    to_images,
    to_patches,
)
from flwr_splitmix.attacks.images.painting.gaussian import Gaussian, by_class
from flwr_splitmix.attacks.images.placing.arranging import (
    MAX_PATCHES,
    OrderedRows,
    arrange,
    home_of,
)
from flwr_splitmix.attacks.images.placing.edges import ShuffledEdge, near
from flwr_splitmix.attacks.images.placing.settling import PatchLikelihoods
from flwr_splitmix.segments.vision.patch_shuffle import patches_kept

MAX_NUMBERS = 1536
"""Most numbers of an image by which places are found: of larger patches their main components."""

MAX_CLASSES = 32
"""Most classes that have a Gaussian of their own: each takes `MAX_NUMBERS` squared twice."""


@dataclass
class PatchMap:
    """An embedding that maps every patch by itself, in the same way at every place.

    Parameters
    ----------
    edge
        The frozen edge.
    grid
        (rows, columns) of patches.
    weights, offset
        float64 (P, w) and (w,): from a patch to its token.
    mean
        float64 (N, P): the mean public image, for what tokens do not show of a patch.
    components
        float64 (P, r), orthonormal: the part of a patch that determines its place.
    """

    edge: ShuffledEdge
    grid: tuple[int, int]
    weights: Tensor
    offset: Tensor
    mean: Tensor
    components: Tensor

    def __post_init__(self) -> None:
        self._inverse = torch.linalg.pinv(self.weights, rtol=CUTOFF)
        self._shown = self.weights @ self._inverse

    @classmethod
    def probe(cls, edge: ShuffledEdge, public: Tensor) -> Self | None:
        """Find the map by images of one patch each; None if the embedding is no such map.

        Parameters
        ----------
        public
            (n, C, H, W): public images.

        Raises
        ------
        NotApplicable
            If there are too many tokens.
        """
        knowledge, tokens = edge.known, edge.embed(public[:1]).shape[1]
        try:
            grid = grid_of(tokens, knowledge.geometry.grid)
            height, width = patch_size(knowledge.image_shape, grid)
        except ValueError:
            return None
        numbers = knowledge.image_shape[0] * height * width
        units = torch.cat([torch.zeros(1, numbers), torch.eye(numbers)])
        full = units[:, None].expand(-1, tokens, -1)
        embedded = edge.embed(to_images(full, grid, knowledge.image_shape))[:, 0]
        offset = embedded[0]
        weights = embedded[1:] - offset
        patches = to_patches(public, grid).double()
        if not near(patches[:64] @ weights + offset, edge.embed(public[:64])):
            return None
        if tokens > MAX_PATCHES:
            raise NotApplicable(
                f"{knowledge.method} has {tokens} patches an image; the places of at most "
                f"{MAX_PATCHES} are found"
            )
        mean = patches.mean(0)
        patch_map = cls(edge, grid, weights, offset, mean, weights[:, :0])
        shown = ((patches - mean) @ patch_map._shown).flatten(0, 1)
        _, strengths, axes = torch.linalg.svd(shown.T @ shown)
        count = min(int((strengths > 1e-12).sum()), max(1, MAX_NUMBERS // tokens))
        patch_map.components = axes[: max(1, count)].T
        return patch_map

    def read(self, tokens: Tensor) -> Tensor:
        """Return the patches (..., P) behind tokens (..., w), as far as tokens show them."""
        patches: Tensor = (tokens - self.offset) @ self._inverse
        return patches

    def tokens(self, patches: Tensor) -> Tensor:
        """Return the tokens (..., w) of patches (..., P)."""
        tokens: Tensor = patches @ self.weights + self.offset
        return tokens

    def coordinates(self, images: Tensor) -> Tensor:
        """Return the components of images from which places are found: float64 (b, N r)."""
        patches = to_patches(images, self.grid).double()
        coordinates: Tensor = patches @ self._shown @ self.components
        return coordinates.flatten(1)

    def images(self, coordinates: Tensor) -> Tensor:
        """Return images (b, C, H, W) of coordinates; the rest is that of the mean image."""
        axes = self.components
        patches = self._rows(coordinates) @ axes.T
        return self._images(patches + self.mean - self.mean @ axes @ axes.T)

    def _rows(self, coordinates: Tensor) -> Tensor:
        return coordinates.reshape(len(coordinates), len(self.mean), -1)

    def _images(self, patches: Tensor) -> Tensor:
        return to_images(patches, self.grid, self.edge.known.image_shape)

    def fit(self, residuals: Tensor, labels: Tensor | None) -> None:
        """Fit Gaussians to residuals (n, N r), one for each class if there are not too many."""
        parts, classes = self._rows(residuals), self.edge.known.num_classes
        if labels is None or classes > MAX_CLASSES:
            self._everything = PatchLikelihoods(Gaussian.fit(parts))
            self._class_looks: list[PatchLikelihoods] = []
        else:
            everything, class_gaussians = by_class(parts, labels, classes)
            self._everything = PatchLikelihoods(everything)
            self._class_looks = [PatchLikelihoods(each) for each in class_gaussians]

    def place(self, tokens: Tensor, expected: Tensor, labels: Tensor | None) -> OrderedRows | None:
        """Put the patches of a batch in their places; None if there are too many to do so.

        Parameters
        ----------
        tokens
            float64 (b, N, w), in slots.
        expected
            float64 (b, N r): coordinates of the images that are expected.
        labels
            int64 (b,); None if unknown.
        """
        b, n = tokens.shape[:2]
        patches = self.read(tokens)
        axes = patches @ self.components
        centres = self._rows(expected)
        models = [self._everything] * b
        if labels is not None and self._class_looks:
            models = [self._class_looks[int(label)] for label in labels]
        if b > 1 and self.edge.shuffle.across_batch:
            if b * n > MAX_PATCHES:
                return None
            home = home_of(b, n, patches_kept(n, self.edge.shuffle.kappa))
            arranged = arrange(axes.flatten(0, 1), centres, models, home)
            places, energies = arranged.places, arranged.energies
        else:
            rows = [arrange(axes[i], centres[i : i + 1], models[i : i + 1]) for i in range(b)]
            places = torch.cat([row.places + i * n for i, row in enumerate(rows)])
            energies = torch.cat([row.energies for row in rows])
        placed = torch.empty_like(patches).flatten(0, 1)
        placed[places] = patches.flatten(0, 1)
        hidden = self.mean - self.mean @ self._shown
        images = self._images(placed.reshape(b, n, -1) + hidden)
        across = self.edge.shuffle.across_batch and b > 1
        row_places = places.view(b, n) if across else places.view(b, n) % n
        return OrderedRows(images, row_places, -energies)
