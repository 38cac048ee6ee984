"""The places of patches, from the look of public images there and the patches placed so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product

import torch
from torch import Tensor

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.painting.painter import Painter
from flwr_splitmix.attacks.images.placing.settling import PatchLikelihoods, settled

TURNS = 8
"""Most times that the patches of a mixture are placed anew."""

MIN_CLASS_PROBABILITY = 0.2
"""Least probability of a class that is tried; the most likely one always is."""

MAX_TRIES = 4
"""Most ways to give the images of a mixture their classes that are tried."""


@dataclass(frozen=True)
class Placed:
    """A mixture's patches in their places.

    Parameters
    ----------
    places
        int64 (N,): the place of each patch.
    images
        float64 (k, N, P): the members' images, painted where they have no patch.
    cost
        Minus the logarithm of the probability, without constants.
    """

    places: Tensor
    images: Tensor
    cost: float


class PlacerByLooks:
    """Places patches, one in each place of the grid, so that public images' Gaussians like them.

    At first each patch goes where such patches are. Then each goes where it fits the image that
    those placed so far suggest, again and again.

    Parameters
    ----------
    painter
        Has the Gaussians.
    """

    def __init__(self, painter: Painter, budget: Budget) -> None:
        self._everything = PatchLikelihoods(painter.everything)
        self._class_looks = [PatchLikelihoods(each) for each in painter.own]
        self._budget = budget

    def __call__(
        self, patches: Tensor, owners: Tensor, members: int, labels: Tensor | None = None
    ) -> Placed:
        """Place the patches of one mixture.

        Parameters
        ----------
        patches
            float64 (N, P), in any order.
        owners
            int64 (N,): which of the members each patch is from.
        members
            Number of members.
        labels
            (members, L): probability of each class for each member; None if nothing is known.
        """
        best: Placed | None = None
        for looks in self._tries(members, labels):
            if best is not None and self._budget.must_end():
                break
            placed = self._placed(patches, owners, looks)
            if best is None or placed.cost < best.cost:
                best = placed
        assert best is not None, "there is at least one way"
        return best

    def _tries(self, members: int, labels: Tensor | None) -> list[Sequence[PatchLikelihoods]]:
        if labels is None or not self._class_looks:
            return [[self._everything] * members]
        likely = []
        for chances in labels:
            order = chances.argsort(descending=True).tolist()
            enough = [each for each in order if chances[each] > MIN_CLASS_PROBABILITY]
            likely.append([self._class_looks[each] for each in enough or order[:1]])
        return list(islice(product(*likely), MAX_TRIES))

    def _placed(self, patches: Tensor, owners: Tensor, looks: Sequence[PatchLikelihoods]) -> Placed:
        parts = [(owners == member, each) for member, each in enumerate(looks)]
        costs = patches.new_empty(len(patches), len(patches))
        for mask, each in parts:
            squares = each.alone.squares(patches[mask])
            costs[mask] = each.alone.costs(patches[mask], squares, each.mean)

        def look(places: Tensor) -> tuple[float, Tensor, Placed]:
            images, cost, given_costs = [], 0.0, torch.empty_like(costs)
            for mask, each in parts:
                image, density = each.gaussian.filled(patches[mask], places[mask])
                images.append(image)
                cost -= density
                squares = each.given.squares(patches[mask])
                given_costs[mask] = each.given.costs(
                    patches[mask], squares, each.expected(image)[0]
                )
            return cost, given_costs, Placed(places, torch.stack(images), cost)

        return settled(costs, look, 1 if self._budget.must_end() else TURNS)
