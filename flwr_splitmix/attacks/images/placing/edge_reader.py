"""Images behind the shuffle of a frozen edge: expected ones, and their patches in place."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.images.embedding.affine_map import AffineMap
from flwr_splitmix.attacks.images.placing.arranging import OrderedRows
from flwr_splitmix.attacks.images.placing.edges import ShuffledEdge
from flwr_splitmix.attacks.images.placing.order_free import OrderFree, moments
from flwr_splitmix.attacks.images.placing.patch_map import PatchMap
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.seeding import derive_seed, seeded_draws, seeded_secrets
from flwr_splitmix.segments.vision.patch_shuffle import draw_order, patches_kept

MIN_BATCHES = 8
"""Batches of public images that are used even if time is up."""

MAX_CHOICE_IMAGES = 96
"""Largest number of public images for the attacker's choice; a quarter if there are few."""

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the image in order that are tried; the rest is the image expected."""


class EdgeReader:
    """Reads the tokens in front of a shuffle, as it deals them, and puts them in order.

    Whatever the order, the tokens' moments and the label, if the adversary has it, predict an
    image by a ridge regression. The Gaussian, of each class, is of what images differ from that
    by. The guess is a mean of this image and the one in order, with weights that are best on
    public images.

    Parameters
    ----------
    edge
        The frozen edge.
    pictures
        Public images.
    labelled
        Whether the adversary has labels.
    budget, seed, name
        Of the attack.

    Attributes
    ----------
    map
        From patches, or images, to tokens.
    share
        Weight of the image in order.

    Raises
    ------
    NotApplicable
        If no patch is read exactly.
    """

    def __init__(
        self,
        edge: ShuffledEdge,
        pictures: Pictures,
        *,
        labelled: bool,
        budget: Budget,
        seed: int,
        name: str,
    ) -> None:
        self._edge, self._budget, self._seed, self._name = edge, budget, seed, name
        knowledge = edge.known
        self.map = self._probe(pictures.images)
        several = knowledge.multi_label or pictures.labels.dim() > 1
        self._classes = 0 if several else knowledge.num_classes
        if int(pictures.labels.max()) >= self._classes:
            self._classes = 0  # they are not classes of the victims' task
        held_out, others = pictures.divided(min(MAX_CHOICE_IMAGES, len(pictures) // 4), seed)
        labels = self.classes_of(others.labels) if labelled else None
        described = self._described(others.images)
        rows = slice(0, len(described))
        labels = None if labels is None else labels[rows]
        coordinates = self.map.coordinates(others.images[rows])
        self._expected = OrderFree.fit(described, labels, knowledge.num_classes, coordinates)
        self.map.fit(self._expected.residuals, labels)
        self.share = self._choose(held_out if len(held_out) else others)

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
        affine = AffineMap.probe(self._edge, public, self._seed)
        if affine is None:
            raise NotApplicable(
                f"tokens of {method} are not linear in the image in front of the shuffle, so no "
                "patch is read exactly"
            )
        return affine

    def classes_of(self, labels: Tensor | None) -> Tensor | None:
        """Return classes int64 (b,), or None if there are none."""
        if labels is None or not self._classes:
            return None
        return labels.argmax(1) if labels.dim() == 2 else labels

    def _described(self, images: Tensor) -> Tensor:
        """Return the moments of the first images, of all if there is time: (n, F)."""
        described: list[Tensor] = []
        for tokens in self._dealt(images):
            if len(described) >= MIN_BATCHES and self._budget.must_end():
                break
            described.append(moments(tokens, self._seed))
        return torch.cat(described)

    def _dealt(self, images: Tensor) -> Iterator[Tensor]:
        """Yield the tokens of images (n, C, H, W), a batch at a time, shuffled as at the edge."""
        shuffle, size = self._edge.shuffle, self._edge.known.batch_size
        for number, part in enumerate(torch.split(images, size)):
            tokens = self._edge.embed(part)
            b, n = tokens.shape[:2]
            seed = derive_seed(self._seed, "a public shuffle", number)
            with seeded_draws(torch.device("cpu"), seed), seeded_secrets():
                order = draw_order(b, n, patches_kept(n, shuffle.kappa))
            yield tokens.flatten(0, 1)[order]

    def _choose(self, held_out: Pictures) -> float:
        """Return the share of the image in order that is best on images held out."""
        errors = torch.zeros(len(SHARES), dtype=torch.float64)
        size = self._edge.known.batch_size
        parts, classes = torch.split(held_out.images, size), torch.split(held_out.labels, size)
        images_read = 0
        for tokens, images, labels in zip(
            self._dealt(held_out.images), parts, classes, strict=True
        ):
            if images_read and self._budget.must_end():
                break
            expected, placed = self.read(tokens, self.classes_of(labels))
            if placed is None:
                return 0.0
            for number, share in enumerate(SHARES):
                guess = _mixed(self.map.images(expected), placed, share)
                errors[number] += (guess - images).square().sum()
            images_read += len(images)
            self._budget.progress(self._name, images_read, len(held_out))
        return SHARES[int(errors.argmin())]

    def read(self, tokens: Tensor, labels: Tensor | None) -> tuple[Tensor, OrderedRows | None]:
        """Return the coordinates of images expected from tokens (b, N, w), and those in order.

        The second is None if there are too many tokens to put in order.

        Parameters
        ----------
        labels
            int64 (b,), see `classes_of`; None if unknown.
        """
        expected = self._expected(moments(tokens, self._seed), labels)
        return expected, self.map.place(tokens, expected, labels)

    def guessed(self, tokens: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the images (b, C, H, W) behind tokens (b, N, w), and how sure each is (b,).

        The latter is None if they were not put in order.
        """
        expected, placed = self.read(tokens, labels)
        images = _mixed(self.map.images(expected), placed, self.share).float()
        return images, None if placed is None else placed.sure.float()

    def unseen(self, rows: int, labels: Tensor | None) -> Tensor:
        """Return the images (rows, C, H, W) that labels alone let one expect."""
        expected = self._expected(self._expected.middle.expand(rows, -1), labels)
        return _mixed(self.map.images(expected), None, self.share).float()


def _mixed(expected: Tensor, placed: OrderedRows | None, share: float) -> Tensor:
    """Return the mean of expected images and those in order, from 0 to 1."""
    if placed is None:
        return expected.clamp(0, 1)
    return (share * placed.images + (1 - share) * expected).clamp(0, 1)
