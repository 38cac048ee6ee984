"""The pseudo-inverse of a patch embedding, by least squares from public pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.images.embedding.inverse import ROWS, LinearInverse, fit_inverse
from flwr_splitmix.attacks.images.embedding.patches import to_images, to_patches
from flwr_splitmix.attacks.images.networks.example import Example, Query, public_examples
from flwr_splitmix.attacks.images.networks.reading import guess_images
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures

BATCH = 64


class Linear(Attack):
    """Solves for the patch behind each token; patches that were not sent become the public mean.

    Exact up to rounding if the lower segment is a patch embedding, in under a second. A mixture
    with unknown masks gives the mixture of the images. If lower segments are not averaged, each
    client has its own inverse.
    """

    name: ClassVar[str] = "linear"
    goal: ClassVar[Goal] = "images"
    needs: ClassVar[frozenset[str]] = frozenset({"smashed data", "lower", "public data"})
    source: ClassVar[str] = "ours"

    def learn(self, view: View, public: Pictures | None) -> None:
        """Fit an inverse for each lower segment."""
        assert public is not None, "`fit` refuses without public data"
        knowledge = view.knowledge
        self._grid = knowledge.patch_grid
        pictures = public.fitted(knowledge.image_shape)
        self._mean = to_patches(pictures.images.mean(0, keepdim=True), self._grid).double()
        segments = segments_of(knowledge)
        self._inverses: dict[int | None, LinearInverse] = {}
        for number, (owner, segment) in enumerate(segments.items()):
            if number and self.budget.must_end():
                break
            self._inverses[owner] = self._inverse(view, pictures, segment)
            self.budget.progress(self.name, number + 1, len(segments))

    def _inverse(self, view: View, public: Pictures, lower: nn.Module | None) -> LinearInverse:
        rows = rows_to_fit(view.knowledge, public)
        example = next(self.examples(view, public, rows, lower))
        prefix = view.knowledge.geometry.prefix
        return fit_inverse(example.tokens[:, prefix:], *pairs(example, self._grid))

    def examples(
        self, view: View, public: Pictures, rows: int, lower: nn.Module | None
    ) -> Iterator[Example]:
        """Yield public images as a lower segment releases them, `rows` at a time."""
        return public_examples(view, public, rows, self.seed, lower=lower)

    def run(self, view: View) -> Guess:
        """Assemble the patches of every row."""
        return guess_images(view, lambda query: self.paint(query, view), self.budget.device)

    def paint(self, query: Query, view: View, others: Tensor | None = None) -> Tensor:
        """Return images (b, C, H, W) of a query's rows.

        Parameters
        ----------
        others
            Images (b, C, H, W) from which the patches come that were not sent; None takes the
            public mean.
        """
        patches = self.patches(query, view)
        if query.mask is not None:
            rest = self._mean if others is None else to_patches(others, self._grid)
            patches = torch.where(query.mask[..., None], patches, rest)
        return to_images(patches, self._grid, view.knowledge.image_shape).float()

    def patches(self, query: Query, view: View) -> Tensor:
        """Return the patch behind each token of a query, float64 (b, N, P)."""
        inverse = self._inverses.get(query.member, self._inverses[None])
        return inverse(query.tokens[:, view.knowledge.geometry.prefix :])


def segments_of(knowledge: Knowledge) -> dict[int | None, nn.Module | None]:
    """Return the lower segment of each client, if there are several; of None, any of them."""
    segments: dict[int | None, nn.Module | None] = {None: None}
    if isinstance(knowledge.lowers, Mapping):
        for client, lower in knowledge.lowers.items():
            segments[client] = lower
    return segments


def rows_to_fit(knowledge: Knowledge, public: Pictures) -> int:
    """Return to how many public images a linear function of tokens is fitted."""
    return min(len(public), max(BATCH, ROWS // knowledge.geometry.patches))


def pairs(example: Example, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the patch behind each token, and which tokens have one.

    If a token is a sum of several images' patches, the patch is their mean.

    Returns
    -------
    (b, N, P) and bool (b, N).
    """
    b, members = example.images.shape[:2]
    patches = to_patches(example.images.flatten(0, 1), grid).reshape(
        b, members, grid[0] * grid[1], -1
    )
    if example.order is not None:
        patches = patches.gather(2, example.order[:, None, :, None].expand_as(patches))
    has_patch = torch.ones(b, patches.shape[2], dtype=torch.bool)
    if example.owners is not None and (members > 1 or bool((example.owners < 0).any())):
        has_patch = example.owners >= 0
        owner = example.owners.clamp_min(0)[:, None, :, None]
        behind = patches.gather(1, owner.expand(-1, 1, -1, patches.shape[3]))[:, 0]
    else:
        behind = patches.mean(1)
    if example.mask is not None:
        has_patch = has_patch & example.mask
    return behind, has_patch
