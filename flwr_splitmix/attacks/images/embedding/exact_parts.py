"""The images of a mixture without training: whose each token is, and the inverse of its embedding.

It needs several known lower segments that differ, as where they are not averaged, and that are
patch embeddings, or nearly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.fitted import Budget
from flwr_splitmix.attacks.images.embedding.inverse import fit_inverse
from flwr_splitmix.attacks.images.embedding.noisy_reading import Errors, exact_reader, reader_of
from flwr_splitmix.attacks.images.embedding.patches import to_images, to_patches
from flwr_splitmix.attacks.images.embedding.subspaces import (
    IMAGES,
    Subspace,
    client_subspaces,
    owners_among,
)
from flwr_splitmix.attacks.images.embedding.unmixing import Unmixer
from flwr_splitmix.attacks.images.label_leaks.shares import of_parts, share_of
from flwr_splitmix.attacks.images.linear import Linear
from flwr_splitmix.attacks.images.linear_decoder import painter_of, painters
from flwr_splitmix.attacks.images.mixtures.grouping import moves_patches, rows_share_masks
from flwr_splitmix.attacks.images.networks.example import Query
from flwr_splitmix.attacks.images.networks.reading import FrozenLowers, Paint
from flwr_splitmix.attacks.images.painting.painter import Painter
from flwr_splitmix.attacks.images.placing.placing_by_looks import Placed, PlacerByLooks
from flwr_splitmix.attacks.pictures import Pictures

MIN_RATIO = 0.02
"""A member with a smaller ratio is taken as not there."""


@dataclass(frozen=True)
class Parts:
    """The tokens of mixtures taken apart.

    Parameters
    ----------
    patches
        float64 (b, N, P): the patch behind each token.
    owners
        int64 (b, N): which of the k members each token is from.
    errors
        The patches' errors; None if these are exact, or nothing is known of them.
    """

    patches: Tensor
    owners: Tensor
    errors: Errors | None = None


def exact_ways(view: View, public: Pictures, budget: Budget, seed: int) -> list[Paint]:
    """Return the ways to read mixtures of several known embeddings; [] if there are none.

    Each takes the rows of one release, and returns images (b, k, C, H, W).

    Parameters
    ----------
    public
        Images of the attacked model's shape.
    """
    subspaces = client_subspaces(view, public, budget)
    if len(subspaces) < 2:
        return []
    if view.knowledge.mixer.cover == "weighted":
        return _sum_readers(view, public, budget, subspaces)
    divide, painter = divider(view, public, budget, seed, subspaces), None
    if not budget.must_end():
        painter = painter_of(view, public, budget)
    if moves_patches(view.knowledge.mixer):
        if painter is None:
            return []
        placer = PlacerByLooks(painter, budget)
        return [partial(_read_moved, view, divide, placer)]
    if painter is None:
        mean = to_patches(public.images.mean(0, keepdim=True), view.knowledge.patch_grid).double()
        return [partial(_read_unmoved, view, divide, partial(_by_mean, mean))]
    return painted_ways(view, divide, painter)


def painted_ways(view: View, divide: Callable[[Query], Parts], painter: Painter) -> list[Paint]:
    """Return ways to paint another member's patches: with labels or without, by class or not."""
    return [
        partial(
            _read_unmoved,
            view,
            divide,
            fitted if labelled else partial(_paint_without_labels, fitted),
        )
        for fitted, labelled in painters(painter, "labels" in view.available)
    ]


def divider(
    view: View, public: Pictures, budget: Budget, seed: int, subspaces: dict[int, Subspace]
) -> Callable[[Query], Parts]:
    """Return a function that finds the owner and the patch of each token of a mixture.

    Without subspaces, all are taken as one member's.
    """
    knowledge = view.knowledge
    linear = Linear()
    linear.fit(view, public, budget.again(budget.left), seed=seed)
    if moves_patches(knowledge.mixer):  # they are placed as if they were exact
        read = exact_reader(view, linear)
    else:
        read = reader_of(view, public, linear, budget, seed)
    clients, known_subspaces = list(subspaces), list(subspaces.values())
    members = min(knowledge.k, len(known_subspaces))
    together = rows_share_masks(knowledge.mixer)
    numbers = prod(knowledge.image_shape) // knowledge.geometry.patches

    def divided(query: Query) -> Parts:
        tokens = query.tokens[:, knowledge.geometry.prefix :]
        if not known_subspaces:
            nobody = torch.zeros(tokens.shape[:2], dtype=torch.long)
            return Parts(linear.patches(query, view).clamp(0, 1), nobody)
        mixed, owners = owners_among(tokens, known_subspaces, members, together=together)
        whose = mixed.gather(1, owners)
        patches = torch.zeros(*owners.shape, numbers, dtype=torch.double)
        kinds = torch.zeros_like(owners)
        covariances: list[Tensor] = []
        for number in sorted({*whose.flatten().tolist()}):
            member_patches, errors = read(replace(query, member=clients[number]))
            patches = torch.where((whose == number)[..., None], member_patches, patches)
            if errors is not None:
                later = errors.kinds + sum(len(each) for each in covariances)
                kinds = torch.where(whose == number, later, kinds)
                covariances.append(errors.covariances)
        errors = Errors(kinds, torch.cat(covariances)) if covariances else None
        return Parts(patches, owners, errors)

    return divided


def _read_unmoved(
    view: View,
    divide: Callable[[Query], Parts],
    paint: Callable[[Tensor, Tensor, Tensor | None, Errors | None], Tensor],
    query: Query,
) -> Tensor:
    """Read mixtures of patches in their places, and paint what is another member's."""
    parts, images = divide(query), []
    masks = [parts.owners == member for member in range(view.knowledge.k)]
    member_labels: Sequence[Tensor | None] = [None] * len(masks)
    if query.labels is not None:
        shares = torch.stack([share_of(mask) for mask in masks], dim=1)
        member_labels = of_parts(query.labels, shares).unbind(1)
    for mask, labels in zip(masks, member_labels, strict=True):
        images.append(paint(parts.patches, mask, labels, parts.errors))
    return _images_of(torch.stack(images, dim=1), view)


def _paint_without_labels(
    painter: Painter,
    patches: Tensor,
    mask: Tensor,
    labels: Tensor | None,
    errors: Errors | None,
) -> Tensor:
    return painter(patches, mask, errors=errors)


def _by_mean(
    mean: Tensor, patches: Tensor, mask: Tensor, labels: Tensor | None, errors: Errors | None
) -> Tensor:
    return torch.where(mask[..., None], patches.clamp(0, 1), mean)


def _read_moved(
    view: View,
    divide: Callable[[Query], Parts],
    placer: PlacerByLooks,
    query: Query,
) -> Tensor:
    """Read mixtures whose patches have been moved."""
    images = [each.images for each in placed_rows(divide(query), query, placer, view.knowledge.k)]
    return _images_of(torch.stack(images), view)


def placed_rows(parts: Parts, query: Query, placer: PlacerByLooks, members: int) -> list[Placed]:
    """Place the patches of each mixture of a query."""
    placed = []
    for row, (patches, owners) in enumerate(zip(parts.patches, parts.owners, strict=True)):
        labels = None
        if query.labels is not None:
            share = torch.bincount(owners, minlength=members).double() / len(owners)
            labels = of_parts(query.labels[row, None], share[None])[0]
        placed.append(placer(patches, owners, members, labels))
    return placed


def _sum_readers(
    view: View, public: Pictures, budget: Budget, subspaces: dict[int, Subspace]
) -> list[Paint]:
    """Return the way to read sums; none if their places are unknown or the groups too many."""
    knowledge = view.knowledge
    unmixer = Unmixer.of(subspaces, knowledge.k)
    if moves_patches(knowledge.mixer) or unmixer is None:
        return []
    patches = to_patches(public.images[:IMAGES], view.knowledge.patch_grid)
    inputs = knowledge.normalise(public.images[:IMAGES]).to(budget.device)
    lowers, inverses = FrozenLowers(knowledge, budget.device), {}
    for client in subspaces:
        lower = lowers[client]
        assert lower is not None
        inverses[client] = fit_inverse(lower(inputs)[:, knowledge.geometry.prefix :], patches)
    mean = patches.double().mean(0)

    def unmixed(query: Query) -> Tensor:
        parts = unmixer(query.tokens[:, knowledge.geometry.prefix :])
        images = []
        for client, ratio, tokens in zip(parts.members, parts.ratios, parts.tokens, strict=True):
            member_patches = inverses[client](tokens)
            images.append(member_patches if ratio >= MIN_RATIO else mean.expand_as(member_patches))
        return _images_of(torch.stack(images, dim=1).clamp(0, 1), view)

    return [unmixed]


def _images_of(patches: Tensor, view: View) -> Tensor:
    return to_images(patches, view.knowledge.patch_grid, view.knowledge.image_shape).float()
