"""Images whose smashed data match the received ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.base import (
    Attack,
    Goal,
    Guess,
    NotApplicable,
    View,
)
from flwr_splitmix.attacks.images.example import Query
from flwr_splitmix.attacks.images.reading import Lowers, guess_images
from flwr_splitmix.mixers import Shuffled
from flwr_splitmix.seeding import torch_seed

ITERATIONS = {"smoke": 300, "cpu": 2_000, "paper": 100_000}

BATCH = 256
"""Images per batch; each is matched on its own, so this affects only time."""


class Match(Attack):
    """Optimises an image, starting from zero, until its smashed data match what was received.

    Adam on the mean square distance at the received patches; no public data. If a mixer shuffled
    the patches, those of the guess are permuted too, anew in every iteration, as the attacker does
    not know the order. Zero is the mean image of the normalisation.

    Settings
    --------
    lr
        Learning rate of Adam.
    """

    name: ClassVar[str] = "match"
    goal: ClassVar[Goal] = "images"
    needs: ClassVar[frozenset[str]] = frozenset({"smashed data", "lower"})
    settings: ClassVar[tuple[Mapping[str, Any], ...]] = ({"lr": 1e-3}, {"lr": 1e-2})
    source: ClassVar[str] = "Patch Shuffling, eq. 4 and section V (white-box attack)"

    def check(self, view: View) -> None:
        """Raise NotApplicable unless the lower segment of some release is known."""
        super().check(view)
        if all(view.knowledge.lower_of(release.client) is None for release in view.releases):
            raise NotApplicable(
                f"the view of the adversary {view.adversary!r} on {view.knowledge.method} has "
                "several lower segments, and no word of which made a release"
            )

    def run(self, view: View) -> Guess:
        """Match every row; if stopped, rows not yet begun stay grey."""
        known, budget = view.knowledge, self.budget
        lowers, prefix = Lowers(known, budget.device), known.geometry.prefix
        moved = isinstance(known.mixer, Shuffled) and view.adversary == "upper only"
        sources = torch.Generator().manual_seed(self.seed)

        def paint(query: Query) -> Tensor:
            lower = lowers[query.member]
            grey = torch.zeros(len(query.tokens), *known.image_shape)
            if lower is None:
                return known.denormalise(grey)
            held = query.tokens.new_ones(query.tokens.shape[:2])
            if query.mask is not None:
                # Prefix tokens of a masked upload are weighted sums.
                held[:, prefix:], held[:, :prefix] = query.mask.to(held), 0
            shuffle = sources if moved else None
            parts = [slice(i, i + BATCH) for i in range(0, len(grey), BATCH)]
            matched = [
                self._match(lower, grey[p], query.tokens[p], held[p], prefix, shuffle)
                for p in parts
            ]
            return known.denormalise(torch.cat(matched))

        with torch_seed(budget.device, self.seed):  # frozen edges draw their own orders
            return guess_images(view, paint, budget.device)

    def _match(
        self,
        lower: nn.Module,
        start: Tensor,
        tokens: Tensor,
        held: Tensor,
        prefix: int,
        shuffle: torch.Generator | None,
    ) -> Tensor:
        """Return inputs (b, C, H, W) that the lower segment maps near tokens (b, T, d)."""
        budget = self.budget
        if budget.over:
            return start
        guess = start.to(budget.device).requires_grad_()
        seen, weight = tokens.to(budget.device), held.to(budget.device)[..., None]
        optimizer = torch.optim.Adam([guess], self.setting.get("lr", 1e-3))
        for _ in budget.steps(ITERATIONS[budget.scale], self.name):
            made = lower(guess)
            if shuffle is not None:
                made = permuted(made, prefix, shuffle)
            apart = ((made - seen).square() * weight).sum((1, 2)) / weight.sum((1, 2)).clamp_min(1)
            (guess.grad,) = torch.autograd.grad(apart.sum(), guess)
            optimizer.step()
        return guess.detach().cpu()


def permuted(tokens: Tensor, prefix: int, source: torch.Generator) -> Tensor:
    """Return tokens (b, prefix + N, d) with the patches of each sample permuted separately."""
    b, length, width = tokens.shape
    order = torch.rand(b, length - prefix, generator=source).argsort(1).to(tokens.device)
    moved = tokens[:, prefix:].gather(1, order[:, :, None].expand(-1, -1, width))
    return torch.cat([tokens[:, :prefix], moved], dim=1)
