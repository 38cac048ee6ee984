"""An image behind shuffled tokens that are linear in it: order and image are found in turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.images.painting.gaussian import MAX_PIXELS, Gaussian
from flwr_splitmix.attacks.images.placing.arranging import OrderedRows, arrange
from flwr_splitmix.attacks.images.placing.assignment import assign
from flwr_splitmix.attacks.images.placing.edges import ShuffledEdge, near
from flwr_splitmix.attacks.images.placing.settling import PatchLikelihoods

MAX_NUMBERS = 4096
"""Most numbers of an image's tokens: wider ones are projected at random, which keeps them apart."""

TURNS = 25
"""Most turns of order and image; most often the first order is right."""

DOUBT, NOISE = 1e-3, 1e-8
"""Variances of tokens' noise, as fractions of their own: while their places are in doubt, so that
those in wrong places do not bend the image, and in the end, so that it is read exactly."""


@dataclass
class AffineMap:
    """An edge whose tokens are an affine function of the whole image, such as of its spectrum.

    Its tokens hold more numbers than the image has, and only one order of them agrees with any
    image. It is found by a Gaussian of tokens, which follows from that of public images; then, in
    turns, the image that fits best and the places that fit the image best, until these agree.

    Parameters
    ----------
    edge
        The frozen edge.
    drawn
        float64 (w, r): the random projection of tokens; the unit matrix if they are few.
    offset
        float64 (N, r): the tokens of a black image.
    weights
        float64 (D, N, r): from the image's D = C H W numbers to tokens.

    Source: ours; assignment by Kuhn's Hungarian method.
    """

    edge: ShuffledEdge
    drawn: Tensor
    offset: Tensor
    weights: Tensor

    @classmethod
    def probe(cls, edge: ShuffledEdge, public: Tensor, seed: int) -> Self | None:
        """Find the map by images of one pixel each; None if the edge is no such map.

        Raises
        ------
        NotApplicable
            If images are too large, or tokens hold fewer numbers than an image.
        """
        knowledge = edge.known
        shape = knowledge.image_shape
        black = edge.embed(torch.zeros(1, *shape))[0]
        n, width = black.shape
        numbers = shape[0] * shape[1] * shape[2]
        # A sum of two images less each of them is black: so it is tried before all is computed.
        halves = edge.embed(public[:32] / 2)
        if not near(2 * halves - black, edge.embed(public[:32])):
            return None
        rank = min(width, MAX_NUMBERS // n)
        if numbers > MAX_PIXELS or n * rank < numbers:
            raise NotApplicable(
                f"images of {knowledge.method} have {numbers} numbers; to put linear tokens in "
                f"order there must be at most {MAX_PIXELS}, and no more than the tokens hold"
            )
        drawn = torch.eye(width, dtype=torch.float64)
        if rank < width:
            source = torch.Generator().manual_seed(seed)
            noise = torch.randn(width, rank, generator=source, dtype=torch.float64)
            drawn = torch.linalg.qr(noise).Q
        pixels = torch.eye(numbers).reshape(numbers, *shape)
        weights = torch.cat(
            [(edge.embed(part) - black) @ drawn for part in torch.split(pixels, 64)]
        )
        predicted = public[:32].double().flatten(1) @ weights.flatten(1)
        if not near(predicted.view(-1, n, rank) + black @ drawn, edge.embed(public[:32]) @ drawn):
            return None
        return cls(edge, drawn, black @ drawn, weights)

    def coordinates(self, images: Tensor) -> Tensor:
        """Return the images' numbers, float64 (b, D)."""
        return images.double().flatten(1)

    def images(self, coordinates: Tensor) -> Tensor:
        """Return images (b, C, H, W) of their numbers."""
        return coordinates.reshape(-1, *self.edge.known.image_shape)

    def fit(self, residuals: Tensor, labels: Tensor | None) -> None:
        """Fit a Gaussian to residuals (n, D), one for all classes: the tokens hold the rest."""
        gaussian = Gaussian.fit(residuals[:, None])
        self._middle = gaussian.mean.flatten()
        # One decomposition serves both levels of noise.
        root = torch.linalg.cholesky(gaussian.covariance)
        explained = root.T @ self.weights.flatten(1)
        self._strengths, turns = torch.linalg.eigh(explained @ explained.T)
        self._axes = root @ turns
        self._variance = float(self._strengths.sum()) / explained.shape[1]
        noise = DOUBT * self._variance * torch.eye(explained.shape[1], dtype=explained.dtype)
        nowhere = torch.zeros_like(self.offset)
        self._model = PatchLikelihoods(Gaussian(nowhere, explained.T @ explained + noise))

    def _fitted(self, apart: Tensor) -> Tensor:
        """Return the likeliest difference from the expected image, (b, D), for tokens (b, N, r)."""
        projections = apart.flatten(1) @ self.weights.flatten(1).T @ self._axes
        fitted: Tensor = (projections / (self._strengths + NOISE * self._variance)) @ self._axes.T
        return fitted

    def place(self, tokens: Tensor, expected: Tensor, labels: Tensor | None) -> OrderedRows:
        """Find images and places of a batch; see `PatchMap.place`."""
        b, n = tokens.shape[:2]
        projected, flat = tokens @ self.drawn, self.weights.flatten(1)
        centres = expected + self._middle
        middle = (centres @ flat).view(b, n, -1) + self.offset
        rows = [arrange(projected[i], middle[i : i + 1], [self._model]).places for i in range(b)]
        following = torch.stack(rows)
        for _ in range(TURNS):
            places = following
            arranged = torch.empty_like(projected).scatter_(
                1, places[..., None].expand_as(projected), projected
            )
            images = centres + self._fitted(arranged - middle)
            predicted = (images @ flat).view(b, n, -1) + self.offset
            following = assign(-torch.cdist(projected, predicted).square())
            if bool((following == places).all()):
                break
        sure = -(arranged - predicted).square().mean((1, 2))
        return OrderedRows(self.images(images), places, sure)
