"""Exact patches where they were sent, and the decoder's guess where they were not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import nn

from flwr_splitmix.attacks.base import Guess, View
from flwr_splitmix.attacks.images.decoder import Decoder
from flwr_splitmix.attacks.images.example import Example, Query, public_examples
from flwr_splitmix.attacks.images.linear import Linear
from flwr_splitmix.attacks.images.reading import Paint, guess_images
from flwr_splitmix.attacks.images.training import image_loss
from flwr_splitmix.attacks.pictures import Pictures

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
        owner, lower = a_client(view)
        pictures = public.fitted(view.knowledge.image_shape)
        rows = min(ROWS, len(pictures))
        example = next(public_examples(view, pictures, rows, self.seed + 1, lower=lower))
        self._paint = best_way(
            lambda query: reader.read(query.tokens, query.mask, device),
            linear,
            view,
            example,
            owner,
        )

    def run(self, view: View) -> Guess:
        """Reconstruct the image behind every row."""
        return guess_images(view, self._paint, self.budget.device)


def best_way(
    decoded: Paint, linear: Linear, view: View, example: Example, owner: int | None
) -> Paint:
    """Return what reads public images best: a network, the linear inverse, or both joined.

    Parameters
    ----------
    decoded, linear
        The fitted network and the fitted inverse.
    example
        Public images, as released by the client `owner` (None: any).
    """
    ways: tuple[Paint, ...] = (
        decoded,
        lambda query: linear.paint(query, view),
        lambda query: linear.paint(query, view, decoded(query)),
    )
    query = Query(example.tokens, example.mask, owner)
    errors = [float(image_loss(way(query).clamp(0, 1), example)) for way in ways]
    return ways[errors.index(min(errors))]


def a_client(view: View) -> tuple[int | None, nn.Module | None]:
    """Return a client and its lower segment; (None, None) if all have the same one."""
    lowers = view.knowledge.lowers
    return next(iter(lowers.items())) if isinstance(lowers, Mapping) else (None, None)
