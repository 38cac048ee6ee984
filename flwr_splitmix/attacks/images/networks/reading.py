"""Turns an attack's images for a view's releases into a guess with confidences."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.base import Guess, View
from flwr_splitmix.attacks.images.networks.example import Query, queries
from flwr_splitmix.attacks.knowledge import Knowledge

Paint = Callable[[Query], Tensor]
"""From a query of b rows to images (b, C, H, W), or several per row, (b, m, C, H, W)."""

CHUNK = 256
"""Images per batch through a lower segment."""


class FrozenLowers:
    """Frozen copies of the lower segments that an adversary has, on a device."""

    def __init__(self, knowledge: Knowledge, device: torch.device) -> None:
        self.knowledge = knowledge
        self.device = device
        self._ready: dict[int | None, nn.Module | None] = {}

    def __getitem__(self, client: int | None) -> nn.Module | None:
        """Return a client's segment, or the only one; None if the adversary does not have it."""
        if client not in self._ready:
            lower = self.knowledge.lower_of(client)
            if lower is not None:
                lower = copy.deepcopy(lower).to(self.device).eval().requires_grad_(False)
            self._ready[client] = lower
        return self._ready[client]


def placed_queries(view: View) -> list[tuple[int, Query]]:
    """Return all queries about a view, each with the position of its release."""
    return [
        (place, query)
        for place, release in enumerate(view.releases)
        for query in queries(release, view.knowledge)
    ]


def guess_images(view: View, paint: Paint, device: torch.device) -> Guess:
    """Reconstruct the images behind every release with `paint`; see `guess_of`."""
    painted = ((place, query, paint(query)) for place, query in placed_queries(view))
    return guess_of(painted, FrozenLowers(view.knowledge, device))


def guess_of(painted: Iterable[tuple[int, Query, Tensor]], lowers: FrozenLowers) -> Guess:
    """Return the guess of images, with its confidences.

    The confidence of an image is how well its smashed data explain the patches attributed to it:
    minus the mean square error, divided by their variance.

    Parameters
    ----------
    painted
        The position of a release in the view, a query about it, and its images, as of `Paint`.
    """
    values, confidence, where = [], [], []
    for place, query, painting in painted:
        painting = painting.clamp(0, 1)
        several = painting if painting.ndim == 5 else painting[:, None]
        for images in several.unbind(1):
            values.append(images)
            confidence.append(explained(images, query, lowers))
            where += [(place, row) for row in range(len(images))]
    return Guess(torch.cat(values), torch.cat(confidence), where)


@torch.no_grad()
def explained(images: Tensor, query: Query, lowers: FrozenLowers) -> Tensor:
    """Return how well images (b, C, H, W) explain a query's tokens: (b,), at most 0.

    All are 0 if the adversary does not have the lower segment.
    """
    lower, knowledge = lowers[query.member], lowers.knowledge
    if lower is None:
        return torch.zeros(len(images))
    size = len(images) if knowledge.mixes_batch else CHUNK
    inputs = torch.split(knowledge.normalise(images), size)
    tokens = torch.cat([lower(part.to(lowers.device)).cpu() for part in inputs])
    prefix = knowledge.geometry.prefix
    tokens, received = tokens[:, prefix:], query.tokens[:, prefix:]
    weights = torch.ones(received.shape[:2]) if query.mask is None else query.mask.float()
    apart = ((tokens - received).square().mean(2) * weights).sum(1) / weights.sum(1).clamp_min(1)
    return -apart / received.var().clamp_min(1e-12)
