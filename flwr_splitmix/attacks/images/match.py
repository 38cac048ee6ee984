"""Images whose smashed data match the received ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.images.mixtures.grouping import moves_patches
from flwr_splitmix.attacks.images.networks.example import Query
from flwr_splitmix.attacks.images.networks.reading import FrozenLowers, guess_of, placed_queries
from flwr_splitmix.seeding import seeded_draws

ITERATIONS = {"smoke": 300, "cpu": 2_000, "paper": 100_000}

BATCH = 256
"""Images per batch, of one client's releases together. Each is matched on its own, so this affects
only time. Where clients mix the images of a batch (NaiveMixSL), a batch is one release."""


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
        lowers, prefix = FrozenLowers(known, budget.device), known.geometry.prefix
        moved = moves_patches(known.mixer) and view.adversary == "upper only"
        sources = torch.Generator().manual_seed(self.seed)

        def match(asked: Sequence[Query], share: Budget) -> Tensor:
            tokens = torch.cat([query.tokens for query in asked])
            grey = torch.zeros(len(tokens), *known.image_shape)
            lower = lowers[asked[0].member]
            if lower is None:
                return grey
            held = torch.cat([_held(query, prefix) for query in asked])
            shuffle = sources if moved else None
            size = len(grey) if known.mixes_batch else BATCH
            parts = [slice(i, i + size) for i in range(0, len(grey), size)]
            return torch.cat(
                [
                    self._match(share, lower, grey[p], tokens[p], held[p], prefix, shuffle)
                    for p in parts
                ]
            )

        with seeded_draws(budget.device, self.seed):  # frozen edges draw their own orders
            placed = placed_queries(view)
            asked = [query for _, query in placed]
            painted: dict[int, Tensor] = {}
            alone = known.mixes_batch
            groups = [[place] for place in range(len(asked))] if alone else _together(asked)
            for number, places in enumerate(groups):
                left = None if budget.left is None else budget.left / (len(groups) - number)
                rows = match([asked[place] for place in places], budget.again(left))
                sizes = [len(asked[place].tokens) for place in places]
                painted |= dict(
                    zip(places, torch.split(known.denormalise(rows), sizes), strict=True)
                )
            return guess_of(((*own, painted[number]) for number, own in enumerate(placed)), lowers)

    def _match(
        self,
        budget: Budget,
        lower: nn.Module,
        start: Tensor,
        tokens: Tensor,
        held: Tensor,
        prefix: int,
        shuffle: torch.Generator | None,
    ) -> Tensor:
        """Return inputs (b, C, H, W) that the lower segment maps near tokens (b, T, d)."""
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


def _held(query: Query, prefix: int) -> Tensor:
    """Return the weight of each of a query's tokens, (b, prefix + N)."""
    held = query.tokens.new_ones(query.tokens.shape[:2])
    if query.mask is not None:
        # Prefix tokens of a masked upload are weighted sums.
        held[:, prefix:], held[:, :prefix] = query.mask.to(held), 0
    return held


def _together(asked: Sequence[Query]) -> list[list[int]]:
    """Return the places of queries that are matched together: those of one client."""
    groups: dict[int | None, list[int]] = {}
    for place, query in enumerate(asked):
        groups.setdefault(query.member, []).append(place)
    return list(groups.values())


def permuted(tokens: Tensor, prefix: int, source: torch.Generator) -> Tensor:
    """Return tokens (b, prefix + N, d) with the patches of each sample permuted separately."""
    b, length, width = tokens.shape
    order = torch.rand(b, length - prefix, generator=source).argsort(1).to(tokens.device)
    moved = tokens[:, prefix:].gather(1, order[:, :, None].expand(-1, -1, width))
    return torch.cat([tokens[:, :prefix], moved], dim=1)
