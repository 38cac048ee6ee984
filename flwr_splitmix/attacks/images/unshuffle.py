"""Images behind frozen edges that shuffle their patches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.images.embedding.affine_map import AffineMap
from flwr_splitmix.attacks.images.placing.arranging import OrderedRows
from flwr_splitmix.attacks.images.placing.edges import ShuffledEdge
from flwr_splitmix.attacks.images.placing.order_free import OrderFree, moments
from flwr_splitmix.attacks.images.placing.patch_map import PatchMap
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Release
from flwr_splitmix.seeding import derive_seed, seeded_draws, seeded_secrets
from flwr_splitmix.segments.vision.patch_shuffle import draw_order, patches_kept

PUBLIC = 8_000
"""Most public images that are used."""

LEAST = 8
"""Batches of public images that are used even if time is up."""

HELD = 96
"""Most public images by which the attacker chooses; a quarter if there are few."""

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the image in order that are tried; the rest is the image expected."""


class Unshuffle(Attack):
    """Undoes what a frozen edge does behind its shuffle, reads the patches, and orders them.

    A frozen transformer block treats all slots alike, so a fixed point inverts it whatever the
    order is. If the embedding maps each patch by itself, patches are then read exactly, and their
    places found by a Gaussian of public images; if patches were exchanged within the batch, among
    the places of all rows. If tokens are linear in the whole image, as those of its spectrum are,
    order and image are found in turns.

    Whatever the order, the tokens' moments and the label, if the adversary has it, predict an
    image by a ridge regression. The Gaussian, of each class, is of what images differ from that
    by. The guess is a mean of this image and the one in order, with weights that are best on
    public images.

    Attributes
    ----------
    share
        Weight of the image in order.
    """

    name: ClassVar[str] = "unshuffle"
    goal: ClassVar[Goal] = "images"
    needs: ClassVar[frozenset[str]] = frozenset({"smashed data", "lower", "public data"})
    source: ClassVar[str] = "ours"

    def learn(self, view: View, public: Pictures | None) -> None:
        """Take the edge apart, and fit expectations and Gaussians to public images."""
        assert public is not None, "`fit` has refused to go on without"
        known = view.knowledge
        self._edge = edge = ShuffledEdge.of(known, self.budget.device)
        pictures = public.fitted(known.image_shape).take(slice(0, PUBLIC))
        edge.learn_to_undo(view, pictures, self.seed)
        self._map = self._probe(pictures.images)
        several = known.multi_label or pictures.labels.dim() > 1
        self._classes = 0 if several else known.num_classes
        if int(pictures.labels.max()) >= self._classes:
            self._classes = 0  # they are not classes of the victims' task
        held, others = pictures.divided(min(HELD, len(pictures) // 4), self.seed)
        labels = self._known(others.labels) if "labels" in view.has else None
        described = self._described(others.images)
        seen = slice(0, len(described))
        labels = None if labels is None else labels[seen]
        wanted = self._map.coordinates(others.images[seen])
        self._expected = OrderFree.fit(described, labels, known.num_classes, wanted)
        self._map.fit(self._expected.residuals, labels)
        self.share = self._choose(held if len(held) else others)

    def _probe(self, public: Tensor) -> PatchMap | AffineMap:
        patches = PatchMap.probe(self._edge, public)
        if patches is not None:
            return patches
        method = self._edge.known.method
        if self._edge.shuffle.across_batch:
            raise NotApplicable(
                f"{method} exchanges tokens within a batch that are not each of one patch alone, "
                "so there is no patch to read"
            )
        affine = AffineMap.probe(self._edge, public, self.seed)
        if affine is None:
            raise NotApplicable(
                f"tokens of {method} are not linear in the image in front of the shuffle, so no "
                "patch is read exactly"
            )
        return affine

    def _known(self, labels: Tensor | None) -> Tensor | None:
        """Return classes int64 (b,), or None if there are none."""
        if labels is None or not self._classes:
            return None
        return labels.argmax(1) if labels.dim() == 2 else labels

    def _described(self, images: Tensor) -> Tensor:
        """Return the moments of the first images, of all if there is time: (n, F)."""
        described: list[Tensor] = []
        for tokens in self._dealt(images):
            if len(described) >= LEAST and self.budget.over:
                break
            described.append(moments(tokens, self.seed))
        return torch.cat(described)

    def _dealt(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the tokens of images (n, C, H, W), a batch at a time, shuffled as at the edge."""
        shuffle, size = self._edge.shuffle, self._edge.known.batch_size
        for number, part in enumerate(torch.split(images, size)):
            tokens = self._edge.embed(part)
            b, n = tokens.shape[:2]
            seed = derive_seed(self.seed, "a public shuffle", number)
            with seeded_draws(torch.device("cpu"), seed), seeded_secrets():
                order = draw_order(b, n, patches_kept(n, shuffle.kappa))
            yield tokens.flatten(0, 1)[order]

    def _choose(self, held: Pictures) -> float:
        """Return the share of the image in order that is best on images held out."""
        errors = torch.zeros(len(SHARES), dtype=torch.float64)
        size = self._edge.known.batch_size
        parts, classes = torch.split(held.images, size), torch.split(held.labels, size)
        done = 0
        for tokens, images, labels in zip(self._dealt(held.images), parts, classes, strict=True):
            if done and self.budget.over:
                break
            expected, placed = self._read(tokens, self._known(labels))
            if placed is None:
                return 0.0
            for number, share in enumerate(SHARES):
                made = _mixed(self._map.images(expected), placed, share)
                errors[number] += (made - images).square().sum()
            done += len(images)
            self.budget.progress(self.name, done, len(held))
        return SHARES[int(errors.argmin())]

    def _read(self, tokens: Tensor, labels: Tensor | None) -> tuple[Tensor, OrderedRows | None]:
        """Return the coordinates of images expected from tokens (b, N, w), and those in order."""
        expected = self._expected(moments(tokens, self.seed), labels)
        return expected, self._map.place(tokens, expected, labels)

    def read(self, release: Release) -> tuple[Tensor, OrderedRows | None]:
        """Return the coordinates of images expected from a release's tokens, and those in order.

        The second is None if the release was not put in order.
        """
        return self._read(self._edge.undo(release.smashed), self._known(release.labels))

    def run(self, view: View) -> Guess:
        """Reconstruct every row.

        Rows of a release that holds nothing, or is not reached in time, get what is expected of
        their labels.
        """
        values, sure, where = [], [], []
        for number, release in enumerate(view.releases):
            rows = len(release.smashed)
            placed = None
            nothing = not bool(release.smashed.any())
            if nothing or (number and self.budget.over):
                labels = self._known(release.labels)
                expected = self._expected(self._expected.middle.expand(rows, -1), labels)
            else:
                expected, placed = self.read(release)
            values.append(_mixed(self._map.images(expected), placed, self.share).float())
            sure.append(torch.full((rows,), -1e6) if placed is None else placed.sure.float())
            where += [(number, row) for row in range(rows)]
            self.budget.progress(self.name, number + 1, len(view.releases))
        return Guess(torch.cat(values), torch.cat(sure), where)


def _mixed(expected: Tensor, placed: OrderedRows | None, share: float) -> Tensor:
    """Return the mean of expected images and those in order, from 0 to 1."""
    if placed is None:
        return expected.clamp(0, 1)
    return (share * placed.images + (1 - share) * expected).clamp(0, 1)
