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
        knowledge, budget = view.knowledge, self.budget
        lowers, prefix = FrozenLowers(knowledge, budget.device), knowledge.geometry.prefix
        moved = moves_patches(knowledge.mixer) and view.adversary == "upper only"
        sources = torch.Generator().manual_seed(self.seed)

        def match(queries: Sequence[Query], share: Budget) -> Tensor:
            tokens = torch.cat([query.tokens for query in queries])
            grey = torch.zeros(len(tokens), *knowledge.image_shape)
            lower = lowers[queries[0].member]
            if lower is None:
                return grey
            weights = torch.cat([_weights(query, prefix) for query in queries])
            shuffle = sources if moved else None
            size = len(grey) if knowledge.mixes_batch else BATCH
            parts = [slice(i, i + size) for i in range(0, len(grey), size)]
            return torch.cat(
                [
                    self._match(share, lower, grey[p], tokens[p], weights[p], prefix, shuffle)
                    for p in parts
                ]
            )

        with seeded_draws(budget.device, self.seed):  # frozen edges draw their own orders
            placed = placed_queries(view)
            queries = [query for _, query in placed]
            painted: dict[int, Tensor] = {}
            alone = knowledge.mixes_batch
            groups = [[place] for place in range(len(queries))] if alone else _together(queries)
            for number, places in enumerate(groups):
                seconds = None if budget.left is None else budget.left / (len(groups) - number)
                rows = match([queries[place] for place in places], budget.again(seconds))
                sizes = [len(queries[place].tokens) for place in places]
                painted |= dict(
                    zip(places, torch.split(knowledge.denormalise(rows), sizes), strict=True)
                )
            return guess_of(
                ((*pair, painted[number]) for number, pair in enumerate(placed)), lowers
            )

    def _match(
        self,
        budget: Budget,
        lower: nn.Module,
        start: Tensor,
        tokens: Tensor,
        weights: Tensor,
        prefix: int,
        shuffle: torch.Generator | None,
    ) -> Tensor:
        """Return inputs (b, C, H, W) that the lower segment maps near tokens (b, T, d)."""
        if budget.must_end():
            return start
        guess = start.to(budget.device).requires_grad_()
        received, weight = tokens.to(budget.device), weights.to(budget.device)[..., None]
        optimizer = torch.optim.Adam([guess], self.setting.get("lr", 1e-3))
        for _ in budget.steps(ITERATIONS[budget.scale], self.name):
            smashed = lower(guess)
            if shuffle is not None:
                smashed = permuted(smashed, prefix, shuffle)
            apart = ((smashed - received).square() * weight).sum((1, 2)) / weight.sum(
                (1, 2)
            ).clamp_min(1)
            (guess.grad,) = torch.autograd.grad(apart.sum(), guess)
            optimizer.step()
        return guess.detach().cpu()


def _weights(query: Query, prefix: int) -> Tensor:
    """Return the weight of each of a query's tokens, (b, prefix + N)."""
    weights = query.tokens.new_ones(query.tokens.shape[:2])
    if query.mask is not None:
        # Prefix tokens of a masked upload are weighted sums.
        weights[:, prefix:], weights[:, :prefix] = query.mask.to(weights), 0
    return weights


def _together(queries: Sequence[Query]) -> list[list[int]]:
    """Return the places of queries that are matched together: those of one client."""
    groups: dict[int | None, list[int]] = {}
    for place, query in enumerate(queries):
        groups.setdefault(query.member, []).append(place)
    return list(groups.values())


def permuted(tokens: Tensor, prefix: int, source: torch.Generator) -> Tensor:
    """Return tokens (b, prefix + N, d) with the patches of each sample permuted separately."""
    b, length, width = tokens.shape
    order = torch.rand(b, length - prefix, generator=source).argsort(1).to(tokens.device)
    moved = tokens[:, prefix:].gather(1, order[:, :, None].expand(-1, -1, width))
    return torch.cat([tokens[:, :prefix], moved], dim=1)
