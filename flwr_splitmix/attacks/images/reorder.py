"""The place of each shuffled token, by regression on its content."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.images.assignment import assign
from flwr_splitmix.attacks.images.example import Example, public_examples
from flwr_splitmix.attacks.images.inverse import CUTOFF, ROWS
from flwr_splitmix.attacks.pictures import Pictures

PUBLIC = 2_000
"""Most public images: few suffice, as a token's place is linear in its position embedding."""


class Reorder(Attack):
    """Determines the place of each token by least squares, with one token per place.

    Exact if the position embedding was added before the shuffle: a few public images reveal it.
    Otherwise places follow from what patches look like at each place.
    """

    name: ClassVar[str] = "reorder"
    goal: ClassVar[Goal] = "order"
    needs: ClassVar[frozenset[str]] = frozenset({"smashed data", "lower", "public data"})
    source: ClassVar[str] = "ours; assignment by Kuhn's Hungarian method"

    def learn(self, view: View, public: Pictures | None) -> None:
        """Regress the slots of public images' tokens."""
        assert public is not None, "`fit` has refused to go on without"
        pictures = public.fitted(view.knowledge.image_shape)
        rows = min(len(pictures), PUBLIC, max(64, 4 * ROWS // view.knowledge.geometry.patches))
        example = next(public_examples(view, pictures, rows, self.seed))
        self._weights, self._offset = self._regression(example, order_of(example, view), view)
        self.budget.progress(self.name, 1, 1)

    def _regression(self, example: Example, order: Tensor, view: View) -> tuple[Tensor, Tensor]:
        tokens = example.tokens[:, view.knowledge.geometry.prefix :].double().flatten(0, 1)
        places = F.one_hot(order, order.shape[1]).double().flatten(0, 1)
        middle, centre = tokens.mean(0), places.mean(0)
        left, strengths, right = torch.linalg.svd(tokens - middle, full_matrices=False)
        kept = strengths > CUTOFF * strengths.max()
        weights = (right[kept].T / strengths[kept]) @ (left[:, kept].T @ (places - centre))
        return weights, centre - middle @ weights

    def run(self, view: View) -> Guess:
        """Assign the tokens of every row to places."""
        prefix = view.knowledge.geometry.prefix
        orders, sure, where = [], [], []
        for place, release in enumerate(view.releases):
            scores = release.smashed[:, prefix:].double() @ self._weights + self._offset
            order = assign(scores)
            orders.append(order)
            sure.append(scores.gather(2, order[..., None])[..., 0].mean(1).float())
            where += [(place, row) for row in range(len(order))]
        return Guess(torch.cat(orders), torch.cat(sure), where)


def order_of(example: Example, view: View) -> Tensor:
    """Return the patch at each slot of public images' releases: int64 (b, N).

    Raises
    ------
    NotApplicable
        If nothing is shuffled for this adversary.
    """
    if example.order is None:
        raise NotApplicable(
            f"the view of the adversary {view.adversary!r} on {view.knowledge.method} has the "
            "patches in their places, so there is no order to find"
        )
    return example.order
