"""Releases of public images, whose truth the attacker knows: training data for attacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.attacks.base import View
from flwr_splitmix.attacks.images.embedding.noise import noise_in
from flwr_splitmix.attacks.images.label_leaks.shares import label_shares, of_parts, share_of
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Release, Simulated
from flwr_splitmix.mixers.frozen_edge import FrozenEdge

IMAGES_AT_ONCE = 512
"""Public images that are released at once."""

SMALL_BATCH = 16
"""Batch size of a simulated client: masks are often per batch, and an attacker wants many."""


@dataclass(frozen=True)
class Example:
    """Rows of releases, each with the truth that it came from.

    Parameters
    ----------
    tokens
        (b, prefix + N, d), as received, divided by mixing weights if they are known.
    images
        (b, m, C, H, W), 0 to 1: the image, or those of a mixture. If a row's mask marks the
        patches of one image, only that image.
    mask
        bool (b, N): the patches of the image sought; None if unknown to the attacker, or if all
        patches are.
    owners
        int64 (b, N): which of the m images each patch belongs to, -1 for none; None if a patch
        belongs to several.
    order
        int64 (b, N): the patch at each slot, 0 to N - 1; None if all are in their places.
    labels, noise
        As in `Query`.
    """

    tokens: Tensor
    images: Tensor
    mask: Tensor | None = None
    owners: Tensor | None = None
    order: Tensor | None = None
    labels: Tensor | None = None
    noise: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: Tensor | slice) -> Example:
        """Return some of the rows."""
        return self._each(lambda part: part[rows])

    def to(self, device: torch.device) -> Example:
        """Return the example on a device."""
        return self._each(lambda part: part.to(device))

    def query(self, member: int | None = None) -> Query:
        """Return the query about images of a client; None if it is unknown."""
        return Query(self.tokens, self.mask, member, self.labels, self.noise)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Example:
        parts = {
            each.name: change(part)
            for each in fields(self)
            if (part := getattr(self, each.name)) is not None
        }
        return Example(**parts)


@dataclass(frozen=True, eq=False)
class Query:
    """Rows of a release, for each of which one image is sought.

    Two queries are equal if they hold the same tensor objects, so that answers can be cached.

    Parameters
    ----------
    tokens
        (b, prefix + N, d), divided by mixing weights if they are known; 0 outside the mask.
    mask
        bool (b, N): the patches of the image sought; None if unknown to the adversary.
    member
        The client that owns the image; None if unknown.
    labels
        float (b, L): each class's share of the received label, at least 0, or likelihood, if the
        label is a mixture's and the image one of its members'; None if no classes were received.
    noise
        float64 (b, N): variance of the noise in each number of a token; None if there is none.
    """

    tokens: Tensor
    mask: Tensor | None
    member: int | None
    labels: Tensor | None = None
    noise: Tensor | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Query) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[int | None, ...]:
        return self.member, *map(id, (self.tokens, self.mask, self.labels, self.noise))


def queries(release: Release, knowledge: Knowledge) -> list[Query]:
    """Return an attacker's queries about a release.

    There is one query, or one per owner if the attacker knows the owners of a mixture's patches.
    """
    tokens, mask = release.smashed, release.mask
    if release.undone is not None:
        tokens, mask = release.undone, release.undone_mask
    if knowledge.mixer.cover == "weighted" and release.lam:
        tokens = tokens / release.lam
    labels, noise = label_shares(release.labels, knowledge), None
    if (variance := noise_in(release, knowledge)) is not None:
        size = len(tokens), knowledge.geometry.patches
        noise = torch.full(size, variance, dtype=torch.float64)
    if release.owners is None or release.client is not None:
        return [Query(tokens, mask, release.client, labels, noise)]
    members = sorted({*release.owners.flatten().tolist()} - {-1})
    masks = [release.owners == client for client in members]
    member_labels: list[Tensor | None] = [None] * len(members)
    if labels is not None and members:
        shares = torch.stack([share_of(each) for each in masks], dim=1)
        member_labels = list(of_parts(labels, shares).unbind(1))
    return [
        Query(_part(tokens, mask), mask, client, client_labels, noise)
        for mask, client, client_labels in zip(masks, members, member_labels, strict=True)
    ]


def _part(tokens: Tensor, mask: Tensor) -> Tensor:
    """Return one image's part of a mixture; others' patches carry no information about it."""
    prefix = tokens.shape[1] - mask.shape[1]
    part = tokens.clone()
    part[:, prefix:] *= mask[..., None]
    return part


def examples_of(release: Simulated, knowledge: Knowledge, images: Tensor) -> Iterator[Example]:
    """Return the rows of a release of the attacker's own images, once per query."""
    origin = release.origin
    assert origin is not None, "a simulated release knows where its rows are from"
    patches = knowledge.geometry.patches
    order = origin.order
    behind = images[origin.sources.clamp_min(0)]
    owners = None
    if origin.owners is not None:
        owners = torch.full_like(origin.owners, -1)
        for column, client in enumerate(origin.members):
            owners[origin.owners == client] = column
    if order is not None:
        if int(order.max()) >= patches:  # patches are exchanged between the rows
            row = torch.arange(len(order))[:, None]
            owners = torch.where(order // patches == row, 0, -1)
        order = order % patches
    for query in queries(release, knowledge):
        sought = behind
        if query.member is not None:
            column = origin.members.index(query.member)
            sought = behind[:, column : column + 1]
        yield Example(query.tokens, sought, query.mask, owners, order, query.labels, query.noise)


def public_examples(
    view: View, public: Pictures, batch: int, seed: int, *, lower: torch.nn.Module | None = None
) -> Iterator[Example]:
    """Release public images forever, yielding `batch` rows of these releases at a time.

    Masks, partners, noise and orders are fresh in every epoch.

    Parameters
    ----------
    lower
        The lower segment to use; None uses what the adversary has.
    """
    rng = np.random.default_rng(seed)
    knowledge = view.knowledge
    size = _batch_size(knowledge)
    waiting: list[Example] = []
    while True:
        order = rng.permutation(len(public))
        for start in range(0, len(order), IMAGES_AT_ONCE):
            drawn = public.take(order[start : start + IMAGES_AT_ONCE])
            releases = knowledge.simulate(
                drawn.images, drawn.labels, rng,
                lower=lower, adversary=view.adversary, batch_size=size,
            )  # fmt: skip
            for release in releases:
                waiting.extend(examples_of(release, knowledge, drawn.images))
            rows = _joined(waiting)
            shuffled = rows.take(torch.from_numpy(rng.permutation(len(rows))))
            full = len(rows) - len(rows) % batch
            for first in range(0, full, batch):
                yield shuffled.take(slice(first, first + batch))
            waiting = [shuffled.take(slice(full, None))] if full < len(rows) else []
            if not full and len(rows) >= len(public):
                yield shuffled  # fewer public images than a batch
                waiting = []


def whole_releases(view: View, public: Pictures, rows: int, seed: int) -> list[Example]:
    """Return releases of public images, each whole: its rows may share members and masks.

    Parameters
    ----------
    rows
        How many, about; of mixtures, only those with as many members as usual.
    """
    knowledge, rng = view.knowledge, np.random.default_rng(seed)
    drawn = public.take(torch.from_numpy(rng.permutation(len(public))[: rows * knowledge.k]))
    size = _batch_size(knowledge)
    releases = knowledge.simulate(
        drawn.images, drawn.labels, rng, adversary=view.adversary, batch_size=size
    )
    examples = [each for r in releases for each in examples_of(r, knowledge, drawn.images)]
    most = max(each.images.shape[1] for each in examples)
    return [each for each in examples if each.images.shape[1] == most]


def _batch_size(knowledge: Knowledge) -> int:
    """Return how many images are released together: few, unless their number matters."""
    # A frozen edge may exchange patches within a batch; images that are mixed within one are
    # solved according to its size.
    mixer = knowledge.mixer
    edge = isinstance(mixer, FrozenEdge)
    whole = edge or mixer.needs_whole_batch or knowledge.mixes_batch
    return knowledge.batch_size if whole else SMALL_BATCH


def _joined(examples: Sequence[Example]) -> Example:
    """Return all rows of examples; of mixtures, only those with the most members."""
    most = max(example.images.shape[1] for example in examples)
    alike = [example for example in examples if example.images.shape[1] == most]
    parts = {}
    for name in ("mask", "owners", "order", "labels", "noise"):
        tensors = [getattr(example, name) for example in alike]
        whole = all(tensor is not None for tensor in tensors)
        parts[name] = torch.cat(tensors) if whole else None
    joined = Example(
        torch.cat([example.tokens for example in alike]),
        torch.cat([example.images for example in alike]),
        **parts,
    )
    if joined.mask is not None and bool(joined.mask.all()):
        return replace(joined, mask=None)
    return joined
