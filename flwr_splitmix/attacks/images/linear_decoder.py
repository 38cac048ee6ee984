"""Exact patches where they were sent, and the best guess where they were not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.base import Guess, View
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.decoder import Decoder
from flwr_splitmix.attacks.images.embedding.noisy_reading import Read, reader_of
from flwr_splitmix.attacks.images.embedding.patches import to_images
from flwr_splitmix.attacks.images.linear import Linear
from flwr_splitmix.attacks.images.networks.example import Example, Query, public_examples
from flwr_splitmix.attacks.images.networks.reading import Paint, guess_images
from flwr_splitmix.attacks.images.networks.training import image_loss
from flwr_splitmix.attacks.images.painting.painter import Painter
from flwr_splitmix.attacks.pictures import Pictures

ROWS = 128
"""Public images on which the attacker bases its choice."""


class LinearDecoder(Decoder):
    """Reads the patches that were sent as `linear` does, and guesses the others from these.

    They are guessed by `decoder`, or by a Gaussian of public images, or one of each class, weighted
    by how it explains what was received, and by the label if there is one. If what was sent has
    noise, whose variance the adversary knows, the Gaussians weigh it against what public images
    look like, also at patches that were sent. Where owners or places
    of the patches are unknown, `linear` or `decoder` alone may be better: the attacker takes what
    is best on public images.
    """

    name: ClassVar[str] = "linear-decoder"
    source: ClassVar[str] = "ours"

    def learn(self, view: View, public: Pictures | None) -> None:
        """Fit all to public images, and choose the best way on others.

        The decoder comes last, with half of the time that is left, so that a limit does not cost
        the other ways.
        """
        assert public is not None, "`fit` refuses without public data"
        pictures = public.fitted(view.knowledge.image_shape)
        judges, others = set_apart(pictures, ROWS, self.seed)
        linear, painter = Linear(), painter_of(view, others, self.budget)
        linear.fit(view, others, self.budget.again(self.budget.left), seed=self.seed)
        read = reader_of(view, others, linear, self.budget, self.seed)
        decoder = Decoder(**self.setting)
        decoder.fit(view, others, self.budget.share(2), seed=self.seed)
        reader, device = decoder.reader, self.budget.device
        self._reader = reader
        owner, lower = a_client(view)
        example = next(public_examples(view, judges, len(judges), self.seed + 1, lower=lower))
        self._paint = best_way(
            lambda query: reader.read(query.tokens, query.mask, device),
            linear,
            painter,
            read,
            view,
            example,
            owner,
        )

    def run(self, view: View) -> Guess:
        """Reconstruct the image behind every row."""
        return guess_images(view, self._paint, self.budget.device)


def best_way(
    decoded: Paint,
    linear: Linear,
    painter: Painter | None,
    read: Read,
    view: View,
    example: Example,
    owner: int | None,
) -> Paint:
    """Return the reader that reads public images best.

    These are a network, the linear inverse, and the inverse with patches that were not received
    from the network or from Gaussians: of all images, or of each class, with the labels or without.

    Parameters
    ----------
    decoded, linear
        The fitted network and the fitted inverse.
    painter
        The Gaussians; None if images are too large for them.
    read
        Reads the patches that are painted around.
    example
        Public images, as released by the client `owner` (None: any).
    """
    ways: list[Paint] = [
        decoded,
        lambda query: linear.paint(query, view),
        lambda query: linear.paint(query, view, decoded(query)),
    ]
    if painter is not None and (example.mask is not None or example.noise is not None):
        for fitted, labelled in painters(painter, example.labels is not None):
            ways.append(partial(_paint_patches, read, fitted, view, labelled))
    query = example.query(owner)
    errors = [float(image_loss(way(query).clamp(0, 1), example)) for way in ways]
    return ways[errors.index(min(errors))]


def painters(painter: Painter, labelled: bool) -> list[tuple[Painter, bool]]:
    """Return the painters to choose from, each with whether it gets received labels."""
    class_painters = [(painter, False), (painter, True)] if labelled else [(painter, False)]
    return [(painter.classless, False), *(class_painters if painter.own else [])]


def painter_of(view: View, public: Pictures, budget: Budget) -> Painter | None:
    """Fit Gaussians to public images of all classes and of each; None if these are too large."""
    knowledge = view.knowledge
    grid = knowledge.patch_grid
    return Painter.of(public, grid, knowledge.num_classes, budget)


def _paint_patches(
    read: Read, painter: Painter, view: View, labelled: bool, query: Query
) -> Tensor:
    patches, errors = read(query)
    mask = torch.ones(patches.shape[:2], dtype=torch.bool) if query.mask is None else query.mask
    patches = painter(patches, mask, query.labels if labelled else None, errors)
    knowledge = view.knowledge
    grid = knowledge.patch_grid
    return to_images(patches, grid, knowledge.image_shape).float()


def set_apart(public: Pictures, rows: int, seed: int) -> tuple[Pictures, Pictures]:
    """Return public images to choose by, at most a quarter, and the others.

    A Gaussian of few images fits these too well to be judged by them.
    """
    if len(public) < 4:
        return public, public
    return public.divided(min(rows, len(public) // 4), seed)


def a_client(view: View) -> tuple[int | None, nn.Module | None]:
    """Return a client and its lower segment; (None, None) if all have the same one."""
    lowers = view.knowledge.lowers
    return next(iter(lowers.items())) if isinstance(lowers, Mapping) else (None, None)
