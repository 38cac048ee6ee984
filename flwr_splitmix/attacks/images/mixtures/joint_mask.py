"""Whose each patch of a mixture is, if all rows of a release share the mask: the likeliest mask.

Source: ours; a local search from pairwise likelihood ratios, as of Kernighan and Lin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.label_leaks.shares import of_parts
from flwr_splitmix.attacks.images.mixtures.likelihood import PatchGaussians
from flwr_splitmix.attacks.images.painting.painter import Painter

START_MASKS = 32
"""Random masks from which pairs of patches are put together."""

REFINED_MASKS = 5
"""The best of these are followed with the likelihood of whole images."""

TURNS = 200
"""Most changes of a mask in one search."""


class JointMask:
    """Finds the mask under which the members' patches are likeliest, in all rows together.

    First the Gaussian of all public images judges. If there are Gaussians of classes, the mask is
    then improved by these, each weighted by its probability given the patches and the label.

    Parameters
    ----------
    painter
        Has the Gaussians.
    """

    def __init__(self, painter: Painter, budget: Budget) -> None:
        self._everything = PatchGaussians.of(painter.everything, [painter.everything])
        self._class_gaussians = (
            PatchGaussians.of(painter.everything, painter.own) if painter.own else None
        )
        self._budget = budget

    def __call__(
        self,
        patches: Tensor,
        members: int,
        labels: Tensor | None = None,
        errors: Tensor | None = None,
        seed: int = 0,
    ) -> Tensor:
        """Return the member of each place: int64 (N,), 0 to members - 1.

        Parameters
        ----------
        patches
            (b, N, P), of rows with the same mask.
        labels
            float64 (b, L): each class's share of the mixture's label; None if none is known. Of
            rows whose images are all of different classes it tells the members' numbers of patches.
        errors
            float64 (N, P, P): covariances of the patches' errors; None if these are exact.
        seed
            Of the masks from which the search starts.
        """
        everything, class_gaussians = self._everything.blurred(errors), self._class_gaussians
        components = everything.components(patches)
        sizes = None if labels is None else sizes_of(labels, members, patches.shape[1])
        judge = _MaskJudge(everything, components, members, sizes)
        starts = _starts(everything.pairs(components), members, seed)
        best, most = starts[0], -torch.inf
        for owners in starts:
            if most > -torch.inf and self._budget.must_end():
                break
            climbed, score = judge.climb(owners, self._budget)
            if score > most:
                best, most = climbed, score
        if class_gaussians is None or self._budget.must_end():
            return best
        finer = replace(judge, gaussians=class_gaussians.blurred(errors), labels=labels)
        return finer.climb(best, self._budget)[0]


class Sizes:
    """How many patches each member has, in no order, according to labels.

    Parameters
    ----------
    counts
        float64 (k,), descending.
    spread
        By how many patches they may be wrong.
    """

    def __init__(self, counts: Tensor, spread: float) -> None:
        self.counts = counts
        self.spread = spread

    def cost(self, numbers: Tensor) -> Tensor:
        """Return the costs (...) of members' numbers of patches (..., k)."""
        apart = numbers.double().sort(-1, descending=True).values - self.counts
        return (apart / self.spread).square().sum(-1) / 2


def sizes_of(labels: Tensor, members: int, places: int) -> Sizes | None:
    """Return the members' numbers of patches, by rows with as many classes as members.

    Parameters
    ----------
    labels
        float64 (b, L): each class's share.

    Returns
    -------
    None if there is no such row.
    """
    if labels.shape[1] < members:
        return None
    shares = labels.sort(1, descending=True).values
    clear = shares[:, members - 1] > 0.5 / places
    if not clear.any():
        return None
    counts = shares[clear, :members] * places
    apart = float((counts - counts.mean(0)).square().mean().sqrt())
    return Sizes(counts.median(0).values, 0.5 + apart)


def _starts(alike: Tensor, members: int, seed: int) -> list[Tensor]:
    """Return the best masks, int64 (N,), under which pairs (N, N) of one member are likely."""
    places = len(alike)
    random = torch.Generator().manual_seed(seed)
    owners = torch.randint(members, (START_MASKS, places), generator=random)
    rows = torch.arange(START_MASKS)
    for _ in range(TURNS):
        membership = F.one_hot(owners, members).to(alike)
        with_each = alike @ membership  # (STARTS, N, k)
        gains = with_each - with_each.gather(2, owners[..., None])
        most, where = gains.flatten(1).max(1)
        if not (most > 1e-9).any():
            break
        place, to = where // members, where % members
        owners[rows, place] = torch.where(most > 1e-9, to, owners[rows, place])
    membership = F.one_hot(owners, members).to(alike)
    scores = torch.einsum("snk,nm,smk->s", membership, alike, membership)
    distinct: list[Tensor] = []
    for start in scores.argsort(descending=True).tolist():
        same = [F.one_hot(owners[start], members).double().T @ F.one_hot(o, members).double()
                for o in distinct]  # fmt: skip
        if not any(bool(((each > 0).sum(1) <= 1).all()) for each in same):
            distinct.append(owners[start])
        if len(distinct) == REFINED_MASKS:
            break
    return distinct


@dataclass(frozen=True)
class _MaskJudge:
    """How likely masks are for the rows of one release; owners are int64 (N,).

    Parameters
    ----------
    components
        float64 (b, N, q): the components of the patches.
    labels
        float64 (b, L): each class's share; None if none is known.
    """

    gaussians: PatchGaussians
    components: Tensor
    members: int
    sizes: Sizes | None
    labels: Tensor | None = None

    def __call__(self, owners: Tensor) -> tuple[float, Tensor]:
        """Return how likely a mask is, and what each patch gains with each member: (N, k)."""
        rows, members, components = len(self.components), self.members, self.components
        membership = F.one_hot(owners, members)
        masks = membership.bool().T
        prior = components.new_zeros(rows, members, len(self.gaussians.means))
        if self.labels is not None:
            shares = masks.double().mean(1).expand(rows, members)
            prior = of_parts(self.labels, shares).log()
        score, beside = 0.0, []
        for member, mask in enumerate(masks):
            density, each = self.gaussians.together(components, mask)
            chances = prior[:, member] + density
            score += float(chances.logsumexp(1).sum())
            beside.append((each * chances.softmax(1)[:, None]).sum(2).sum(0))
        gains = torch.stack(beside, dim=1)
        gains = gains - gains.gather(1, owners[:, None])
        if self.sizes is not None:
            score -= float(self.sizes.cost(membership.sum(0)))
        return score, gains

    def climb(self, owners: Tensor, budget: Budget) -> tuple[Tensor, float]:
        """Move single patches to other members, or exchange two, while this is likelier."""
        score, gains = self(owners)
        for _ in range(TURNS):
            for moved in _changes(owners, gains, self.sizes):
                reached, following = self(moved)
                if reached > score + 1e-6:
                    owners, score, gains = moved, reached, following
                    break
            else:
                break
            if budget.must_end():
                break
        return owners, score


def _changes(owners: Tensor, gains: Tensor, sizes: Sizes | None) -> list[Tensor]:
    """Return masks to try, the most promising first: many moves, one move, or an exchange."""
    members = gains.shape[1]
    numbers, raw = F.one_hot(owners, members).sum(0), gains
    if sizes is not None:
        one = F.one_hot(torch.arange(members), members)
        after = numbers - one[owners][:, None] + one[None]
        gains = gains - (sizes.cost(after) - sizes.cost(numbers))
    best, to = gains.max(1)
    order = best.argsort(descending=True)
    order = order[best[order] > 1e-6]
    tries = []
    if len(order) > 3:
        tries.append(_moved(owners, order[: len(order) // 3], to))
    tries += [_moved(owners, order[at : at + 1], to) for at in range(min(2, len(order)))]
    return tries + [_exchanged(owners, raw, *pair) for pair in combinations(range(members), 2)]


def _exchanged(owners: Tensor, gains: Tensor, one: int, other: int) -> Tensor:
    """Exchange the patches of two members that gain most by it."""
    exchanged = owners.clone()
    for member, to in ((one, other), (other, one)):
        mask = owners == member
        if mask.any():
            exchanged[gains[:, to].masked_fill(~mask, -torch.inf).argmax()] = to
    return exchanged


def _moved(owners: Tensor, places: Tensor, to: Tensor) -> Tensor:
    moved = owners.clone()
    moved[places] = to[places]
    return moved
