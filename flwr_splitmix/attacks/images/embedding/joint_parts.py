"""The images of a mixture by one embedding for all: its inverse, and the likeliest shared mask."""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.embedding.exact_parts import Parts, painted_ways
from flwr_splitmix.attacks.images.embedding.noisy_reading import reader_of
from flwr_splitmix.attacks.images.linear import Linear
from flwr_splitmix.attacks.images.linear_decoder import painter_of
from flwr_splitmix.attacks.images.mixtures.grouping import moves_patches, rows_share_masks
from flwr_splitmix.attacks.images.mixtures.joint_mask import JointMask
from flwr_splitmix.attacks.images.networks.example import Example, Query
from flwr_splitmix.attacks.images.networks.reading import Paint
from flwr_splitmix.attacks.images.painting.painter import Painter
from flwr_splitmix.attacks.pictures import Pictures

MAX_CACHED_MIXTURES = 64
"""Mixtures whose parts are kept while ways to paint them are compared."""


class JointParts:
    """Reads each patch by one linear inverse, and gives it to a member by what fits together.

    All rows of a release, if they share their mask, decide together; otherwise each row alone.

    Parameters
    ----------
    public
        Images of the attacked model's shape.
    painter
        Has the Gaussians.
    """

    def __init__(
        self, view: View, public: Pictures, painter: Painter, budget: Budget, seed: int
    ) -> None:
        linear = Linear()
        linear.fit(view, public, budget.again(budget.left), seed=seed)
        self._read = reader_of(view, public, linear, budget, seed)
        self._masks = JointMask(painter, budget)
        self._members = view.knowledge.k
        self._together = rows_share_masks(view.knowledge.mixer)
        self._seed = seed

    def __call__(self, query: Query) -> Parts:
        """Take the rows of one release apart."""
        patches, errors = self._read(query)
        size = len(patches) if self._together else 1
        owners = []
        for start in range(0, len(patches), max(1, size)):
            rows = slice(start, start + size)
            blur = None if errors is None else errors.covariances[errors.kinds[start]]
            labels = None if query.labels is None else query.labels[rows]
            mask = self._masks(patches[rows], self._members, labels, blur, self._seed)
            owners.append(mask.expand(len(patches[rows]), -1))
        return Parts(patches, torch.cat(owners), errors)


def joint_parts(
    view: View, public: Pictures, painter: Painter | None, budget: Budget, seed: int
) -> JointParts | None:
    """Return a separator of mixtures; None for sums, moved patches or too large images."""
    mixer = view.knowledge.mixer
    if painter is None or budget.must_end() or mixer.cover == "weighted" or moves_patches(mixer):
        return None
    return JointParts(view, public, painter, budget, seed)


def joint_ways(view: View, public: Pictures, budget: Budget, seed: int) -> list[Paint]:
    """Return the ways to read mixtures by one known embedding, painted; [] if there are none.

    Each takes the rows of one release, and returns images (b, k, C, H, W).

    Parameters
    ----------
    public
        Images of the attacked model's shape.
    """
    painter = None if budget.must_end() else painter_of(view, public, budget)
    divide = joint_parts(view, public, painter, budget, seed)
    if divide is None or painter is None:
        return []
    # The ways differ in what they paint, and ask about the same queries.
    return painted_ways(view, lru_cache(MAX_CACHED_MIXTURES)(divide), painter)


def share_right(owners: Tensor, example: Example) -> float:
    """Return which share of patches has its owner under the numbering that suits each row best.

    Parameters
    ----------
    owners
        int64 (b, N), of a release of public images.
    """
    assert example.owners is not None, "patches of a mixture that is not a sum have owners"
    members = example.images.shape[1]
    table = torch.einsum(
        "bni,bnj->bij",
        F.one_hot(owners, members).double(),
        F.one_hot(example.owners.clamp_min(0), members).double(),
    )
    best = [table[:, range(members), list(way)].sum(1) for way in permutations(range(members))]
    return float(torch.stack(best).amax(0).mean() / owners.shape[1])
