"""The place of each shuffled token, by regression on its content, or by looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.images.embedding.exact_parts import divider, placed_rows
from flwr_splitmix.attacks.images.embedding.inverse import CUTOFF, ROWS
from flwr_splitmix.attacks.images.embedding.subspaces import client_subspaces
from flwr_splitmix.attacks.images.linear_decoder import painter_of, set_apart
from flwr_splitmix.attacks.images.networks.example import (
    Example,
    Query,
    public_examples,
    whole_releases,
)
from flwr_splitmix.attacks.images.networks.reading import placed_queries
from flwr_splitmix.attacks.images.placing.assignment import assign
from flwr_splitmix.attacks.images.placing.placing_by_looks import PlacerByLooks
from flwr_splitmix.attacks.pictures import Pictures

MAX_PUBLIC = 2_000
"""Most public images: few suffice, as a token's place is linear in its position embedding."""


SUFFICIENT_ACCURACY = 0.99
"""Part of public patches in place from which nothing else is tried."""

CHOICE_ROWS = 24
"""Public rows on which the attacker bases its choice."""

Order = Callable[[Query], tuple[Tensor, Tensor]]
"""From a release to the patch at each slot, int64 (b, N), and the certainty of each row, (b,)."""


class Reorder(Attack):
    """Determines the place of each token, with one token per place unless patches are exchanged.

    Least squares are exact if the position embedding was added before the shuffle: a few public
    images reveal it. Otherwise places follow from what patches look like: by least squares, each
    patch alone, or from Gaussians of public images, each beside those placed so far. The attacker
    takes what is better on public images.
    """

    name: ClassVar[str] = "reorder"
    goal: ClassVar[Goal] = "order"
    needs: ClassVar[frozenset[str]] = frozenset({"smashed data", "lower", "public data"})
    source: ClassVar[str] = "ours; assignment by Kuhn's Hungarian method"

    def learn(self, view: View, public: Pictures | None) -> None:
        """Regress the slots of public images' tokens."""
        assert public is not None, "`fit` refuses without public data"
        pictures = public.fitted(view.knowledge.image_shape)
        judges, others = set_apart(pictures, CHOICE_ROWS * view.knowledge.k, self.seed)
        rows = min(len(others), MAX_PUBLIC, max(64, 4 * ROWS // view.knowledge.geometry.patches))
        example = next(public_examples(view, others, rows, self.seed))
        weights, offset = self._regression(example, order_of(example, view), view)
        prefix = view.knowledge.geometry.prefix
        exchanged = are_exchanged(order_of(example, view))

        def regressed(query: Query) -> tuple[Tensor, Tensor]:
            scores = query.tokens[:, prefix:].double() @ weights + offset
            order = scores.argmax(2) if exchanged else assign(scores)
            return order, scores.gather(2, order[..., None])[..., 0].mean(1).float()

        self._order: Order = regressed
        releases = whole_releases(view, judges, CHOICE_ROWS, self.seed + 1)
        alone, looks = in_place(regressed, releases, view), None
        if alone < SUFFICIENT_ACCURACY and not self.budget.must_end():
            looks = order_by_looks(view, others, self.budget, self.seed)
        if looks is not None and in_place(looks, releases, view) > alone:
            self._order = looks
        self.budget.progress(self.name, 1, 1)

    def _regression(self, example: Example, order: Tensor, view: View) -> tuple[Tensor, Tensor]:
        tokens = example.tokens[:, view.knowledge.geometry.prefix :].double().flatten(0, 1)
        places = F.one_hot(order, order.shape[1]).double().flatten(0, 1)
        middle, centre = tokens.mean(0), places.mean(0)
        left, strengths, right = torch.linalg.svd(tokens - middle, full_matrices=False)
        significant = strengths > CUTOFF * strengths.max()
        weights = (right[significant].T / strengths[significant]) @ (
            left[:, significant].T @ (places - centre)
        )
        return weights, centre - middle @ weights

    def run(self, view: View) -> Guess:
        """Assign the tokens of every row to places."""
        orders, sure, where = [], [], []
        for place, query in placed_queries(view):
            order, certain = self._order(query)
            orders.append(order)
            sure.append(certain)
            where += [(place, row) for row in range(len(order))]
        return Guess(torch.cat(orders), torch.cat(sure), where)


def order_by_looks(view: View, public: Pictures, budget: Budget, seed: int) -> Order | None:
    """Return a placing of patches by Gaussians of public images; None if these are too large.

    Patches are distinguished by their owners if several lower segments are known; otherwise they
    are placed as one image.
    """
    painter = painter_of(view, public, budget)
    if painter is None:
        return None
    placer = PlacerByLooks(painter, budget)
    subspaces = client_subspaces(view, public, budget)
    members = view.knowledge.k if subspaces else 1
    divide = divider(view, public, budget, seed, subspaces)

    def ordered(query: Query) -> tuple[Tensor, Tensor]:
        rows = placed_rows(divide(query), query, placer, members)
        return torch.stack([each.places for each in rows]), torch.tensor([-r.cost for r in rows])

    return ordered


def in_place(order: Order, releases: Sequence[Example], view: View) -> float:
    """Return the part of public patches that are put in their places."""
    right = [order(each.query())[0].eq(order_of(each, view)) for each in releases]
    return float(torch.cat(right).double().mean())


def are_exchanged(order: Tensor) -> bool:
    """Return whether orders (b, N) have places twice, as if patches went from image to image."""
    return bool((order.sort(1).values != torch.arange(order.shape[1])).any())


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
