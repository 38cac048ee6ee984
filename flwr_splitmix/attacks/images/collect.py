"""All releases of an image combined: the total leak over many steps and epochs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.base import Guess, View
from flwr_splitmix.attacks.images.collecting.gathering import distances, unite, united_noise
from flwr_splitmix.attacks.images.collecting.linking import Row, link, query_of
from flwr_splitmix.attacks.images.embedding.noise import has_noise
from flwr_splitmix.attacks.images.embedding.noisy_reading import reader_of
from flwr_splitmix.attacks.images.linear import Linear
from flwr_splitmix.attacks.images.linear_decoder import (
    ROWS,
    a_client,
    best_way,
    painter_of,
    set_apart,
)
from flwr_splitmix.attacks.images.networks.example import SMALL_BATCH, Example, Query, examples_of
from flwr_splitmix.attacks.images.networks.reading import FrozenLowers, Paint, explained
from flwr_splitmix.attacks.images.networks.trained import TrainedAttack
from flwr_splitmix.attacks.images.networks.training import BATCH, image_loss, train_reader
from flwr_splitmix.attacks.images.networks.transformer import decoder_of
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.mixers.frozen_edge import FrozenEdge

RELEASES = {"smoke": 4, "cpu": 30, "paper": 60}
"""Most releases of an image that are combined, by scale."""


class Collect(TrainedAttack):
    """Finds the releases of each image, unites them, and reads what they hold together.

    A transformer decodes them, the linear inverse reads the patches that any of them held, or it
    does so and the others are guessed, by the transformer or by a Gaussian of public images, which
    knows how much noise is left: whichever is best on public images.

    Rows are linked by ids, if these are sent, or by their distance at the patches that both hold,
    with a threshold found on public images. Patches are averaged over the releases that hold them:
    noise shrinks, masks become their union. If a frozen edge permutes the patches of each release,
    they cannot be averaged: then each release is decoded, and the images are averaged. There is
    one guess per group of rows, at its newest row.

    Attributes
    ----------
    collected
        Number of releases in each group of the last `run`.
    """

    name: ClassVar[str] = "collect"
    needs: ClassVar[frozenset[str]] = frozenset({"smashed data", "lower", "clients", "public data"})
    source: ClassVar[str] = "Patch Shuffling, eq. 5 and section V (adaptive attack)"

    def network(self, knowledge: Knowledge, width: int) -> nn.Module:
        """Make the transformer."""
        return decoder_of(knowledge, width, self.budget.scale)

    def learn(self, view: View, public: Pictures | None) -> None:
        """Link the view's rows, then train on public images released equally often."""
        assert public is not None, "`fit` refuses without public data"
        frozen = isinstance(view.knowledge.mixer, FrozenEdge)
        pictures = public.fitted(view.knowledge.image_shape)
        self._near = None if frozen else near_enough(view, pictures, self.seed)
        scale = self.budget.scale
        if frozen:
            super().learn(view, public)
            return
        sizes = [len(group) for group in link(view, RELEASES[scale], self._near)]
        # Rows that nothing was found for say little about the others.
        self.releases = int(np.median([size for size in sizes if size > 1] or [1]))
        judges, others = set_apart(pictures, ROWS, self.seed)
        linear, painter = UnitedLinear(self.releases), painter_of(view, others, self.budget)
        linear.fit(view, others, self.budget.again(self.budget.left), seed=self.seed)
        read = reader_of(view, others, linear, self.budget, self.seed)
        self._reader = train_reader(  # last, so that a limit does not cost the other ways
            lambda width: self.network(view.knowledge, width),
            united_examples(view, others, self.releases, self.seed),
            image_loss,
            steps=self.epochs[scale] * max(1, len(others) // BATCH),
            lr=self.setting.get("lr", self.rate),
            seed=self.seed,
            budget=self.budget.share(2),
            loop=self.name,
        )
        owner, lower = a_client(view)
        example = next(
            united_examples(view, judges, self.releases, self.seed + 1, lower=lower, batch=ROWS)
        )
        self._paint: Paint = best_way(self._decoded, linear, painter, read, view, example, owner)

    def _decoded(self, query: Query) -> Tensor:
        return self.reader.read(query.tokens, query.mask, self.budget.device)

    def run(self, view: View) -> Guess:
        """Reconstruct one image for every group of rows."""
        lowers = FrozenLowers(view.knowledge, self.budget.device)
        groups = link(view, RELEASES[self.budget.scale], self._near)
        self.collected = [len(group) for group in groups]
        values, sure = [], []
        for group in groups:
            each = query_of(view, group)
            if isinstance(view.knowledge.mixer, FrozenEdge):
                painted = self._decoded(each).mean(0, keepdim=True)
                query = query_of(view, group[:1])
            else:
                query = united_query(each)
                painted = self._paint(query)
            values.append(painted.clamp(0, 1))
            sure.append(explained(values[-1], query, lowers))
        newest: list[Row] = [group[0] for group in groups]
        return Guess(torch.cat(values), torch.cat(sure), newest)


def united_query(each: Query) -> Query:
    """Return the query about one image that was received in several rows.

    The mean of its labels has less noise than each of them.
    """
    assert each.mask is not None
    masks = each.mask[:, None]
    tokens, coverage = unite(each.tokens[:, None], masks)
    labels = None if each.labels is None else each.labels.mean(0, keepdim=True)
    noise = None if each.noise is None else united_noise(each.noise[:, None], masks)
    return Query(tokens, coverage > 0, each.member, labels, noise)


class UnitedLinear(Linear):
    """The linear inverse of united releases, in which noise is smaller than in a single one."""

    def __init__(self, releases: int) -> None:
        super().__init__()
        self.releases = releases

    def examples(
        self, view: View, public: Pictures, rows: int, lower: nn.Module | None
    ) -> Iterator[Example]:
        """Yield public images, each released several times and united."""
        return united_examples(view, public, self.releases, self.seed, lower=lower, batch=rows)


def near_enough(view: View, public: Pictures, seed: int) -> float | None:
    """Return the distance below which two rows show one image, from public images released twice.

    It is the geometric midpoint between distances of the same image and of different images.
    None if these overlap, so that rows cannot be linked.
    """
    rng = np.random.default_rng(seed)
    drawn = public.take(slice(0, min(len(public), 128)))
    first, second = (_release_images(view, drawn, rng) for _ in range(2))
    prefix = view.knowledge.geometry.prefix
    apart = distances(
        first.tokens[:, prefix:], _mask(first), second.tokens[:, prefix:], _mask(second)
    )
    same = torch.eye(len(drawn), dtype=torch.bool)
    ones, others = apart[same], apart[~same]
    ones, others = ones[ones.isfinite()], others[others.isfinite()]
    if not len(ones) or not len(others):
        return None
    high, low = float(ones.quantile(0.95)), float(others.quantile(0.05))
    return None if high >= low else float(np.sqrt(max(high, 1e-9 * low) * low))


def united_examples(
    view: View,
    public: Pictures,
    releases: int,
    seed: int,
    *,
    lower: nn.Module | None = None,
    batch: int = BATCH,
) -> Iterator[Example]:
    """Release batches of public images `releases` times each; yield them united, forever.

    Parameters
    ----------
    lower
        The lower segment to use; None uses what the adversary has.
    """
    rng = np.random.default_rng(seed)
    batch = min(batch, len(public))
    while True:
        order = rng.permutation(len(public))
        for start in range(0, len(order) - batch + 1, batch):
            drawn = public.take(order[start : start + batch])
            examples = [_release_images(view, drawn, rng, lower) for _ in range(releases)]
            masks = torch.stack([_mask(each) for each in examples])
            united, coverage = unite(torch.stack([each.tokens for each in examples]), masks)
            noise = [each.noise for each in examples if each.noise is not None]
            remaining_noise = united_noise(torch.stack(noise) if noise else None, masks)
            repeated_labels = [each.labels for each in examples if each.labels is not None]
            labels = (
                torch.stack(repeated_labels).mean(0) if len(repeated_labels) == releases else None
            )
            yield Example(
                united, drawn.images[:, None], coverage > 0, labels=labels, noise=remaining_noise
            )


def _release_images(
    view: View, drawn: Pictures, rng: np.random.Generator, lower: nn.Module | None = None
) -> Example:
    """Release every image once; the rows are in the images' order."""
    knowledge = view.knowledge
    size = knowledge.geometry.tokens, knowledge.geometry.width
    tokens = torch.zeros(len(drawn), *size)
    mask = torch.zeros(len(drawn), knowledge.geometry.patches, dtype=torch.bool)
    noise = torch.zeros(mask.shape, dtype=torch.float64) if has_noise(knowledge.mixer) else None
    labels = torch.zeros(len(drawn), knowledge.num_classes, dtype=torch.double)
    labelled = True
    releases = knowledge.simulate(
        drawn.images,
        drawn.labels,
        rng,
        lower=lower,
        adversary=view.adversary,
        batch_size=SMALL_BATCH,
    )
    for release in releases:
        assert release.origin is not None
        for example in examples_of(release, knowledge, drawn.images):
            rows = release.origin.sources[:, 0]
            tokens[rows] = example.tokens
            mask[rows] = True if example.mask is None else example.mask
            if noise is not None and example.noise is not None:
                noise[rows] = example.noise
            if example.labels is None:
                labelled = False
            else:
                labels[rows] = example.labels
    released_labels = labels if labelled else None
    return Example(tokens, drawn.images[:, None], mask, labels=released_labels, noise=noise)


def _mask(example: Example) -> Tensor:
    assert example.mask is not None, "released images have masks here"
    return example.mask
