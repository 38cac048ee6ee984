"""Exact patches where they were sent, and the decoder's guess where they were not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from flwr_splitmix.attacks.base import Guess, Pictures, View
from flwr_splitmix.attacks.images.decoder import Decoder
from flwr_splitmix.attacks.images.example import Query, public_examples
from flwr_splitmix.attacks.images.linear import Linear
from flwr_splitmix.attacks.images.reading import Paint, guess_images
from flwr_splitmix.attacks.images.training import image_loss

ROWS = 128
"""Public images by which the attacker chooses."""


class LinearDecoder(Decoder):
    """Reads the patches that were sent as `linear` does, and has `decoder` paint the others.

    Each is the better one for its patches, so together they read more than either of them. Where
    owners or places of the patches are unknown, one alone may be better: the attacker takes what
    is best on public images.
    """

    name: ClassVar[str] = "linear-decoder"
    source: ClassVar[str] = "ours"

    def learn(self, view: View, public: Pictures | None) -> None:
        """Fit both to public images, and choose the better one or both."""
        super().learn(view, public)
        assert public is not None, "`fit` has refused to go on without"
        linear, reader, device = Linear(), self.reader, self.budget.device
        linear.fit(view, public, self.budget.again(self.budget.left), seed=self.seed)

        def decoded(query: Query) -> Tensor:
            return reader.read(query.tokens, query.mask, device)

        ways: tuple[Paint, ...] = (
            decoded,
            lambda query: linear.paint(query, view),
            lambda query: linear.paint(query, view, decoded(query)),
        )
        lowers = view.knowledge.lowers
        owner, lower = next(iter(lowers.items())) if isinstance(lowers, Mapping) else (None, None)
        pictures = public.fitted(view.knowledge.image_shape)
        rows = min(ROWS, len(pictures))
        example = next(public_examples(view, pictures, rows, self.seed + 1, lower=lower))
        query = Query(example.tokens, example.mask, owner)
        errors = [float(image_loss(way(query).clamp(0, 1), example)) for way in ways]
        self._paint = ways[errors.index(min(errors))]

    def run(self, view: View) -> Guess:
        """Reconstruct the image behind every row."""
        return guess_images(view, self._paint, self.budget.device)
