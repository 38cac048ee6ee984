"""The order of shuffled patches from how well they fit together, without position embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.images.networks.example import Example, public_examples
from flwr_splitmix.attacks.images.networks.training import BATCH, train_reader
from flwr_splitmix.attacks.images.networks.transformer import SIZES
from flwr_splitmix.attacks.images.placing.neighbours import (
    Judged,
    Neighbours,
    arrange,
    neighbour_loss,
)
from flwr_splitmix.attacks.images.reorder import are_exchanged, order_of
from flwr_splitmix.attacks.pictures import Pictures


class Jigsaw(Attack):
    """Learns which place suits a patch, and which patches fit beside and below each other.

    It is trained on shuffled releases of public images; a graduated assignment then finds the
    arrangement in which places and pairs agree best. Patches that look alike are interchangeable:
    many blank ones cause many wrong places, which are invisible in the image. Patches that were
    exchanged between images have no neighbours in their row: each gets the place that suits it.
    """

    name: ClassVar[str] = "jigsaw"
    goal: ClassVar[Goal] = "order"
    needs: ClassVar[frozenset[str]] = frozenset({"smashed data", "lower", "public data"})
    epochs: ClassVar[Mapping[str, int]] = {"smoke": 2, "cpu": 10, "paper": 60}
    source: ClassVar[str] = "ours, after Noroozi and Favaro 2016; Patch Shuffling, section V"

    def learn(self, view: View, public: Pictures | None) -> None:
        """Train on shuffled public images."""
        assert public is not None, "`fit` refuses without public data"
        knowledge = view.knowledge
        geometry = knowledge.geometry
        grid = self._grid = knowledge.patch_grid
        pictures = public.fitted(knowledge.image_shape)

        def shuffled() -> Iterator[Example]:
            for example in public_examples(view, pictures, BATCH, self.seed):
                order_of(example, view)
                yield example

        self._exchanged = are_exchanged(order_of(next(shuffled()), view))

        def loss(judged: Judged, example: Example) -> Tensor:
            order = order_of(example, view)
            if self._exchanged:
                return F.cross_entropy(judged[0].flatten(0, 1), order.flatten())
            return neighbour_loss(judged, order, grid)

        self._reader = train_reader(
            lambda width: Neighbours(
                width, geometry.patches, geometry.prefix, **SIZES[self.budget.scale]
            ),
            shuffled(),
            loss,
            steps=self.epochs[self.budget.scale] * max(1, len(pictures) // BATCH),
            lr=self.setting.get("lr", 1e-3),
            seed=self.seed,
            budget=self.budget,
            loop=self.name,
        )

    @torch.no_grad()
    def run(self, view: View) -> Guess:
        """Arrange the patches of every row."""
        orders, sure, where = [], [], []
        for place, release in enumerate(view.releases):
            tokens = release.smashed.to(self.budget.device)
            judged = self._reader(tokens, None)
            if self._exchanged:
                likely, slots = judged[0].softmax(2).max(2)
            else:
                slots, likely = arrange(judged, self._grid)
            orders.append(slots.cpu())
            sure.append(likely.mean(1).cpu())
            where += [(place, row) for row in range(len(slots))]
        return Guess(torch.cat(orders), torch.cat(sure), where)
