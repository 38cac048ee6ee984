"""Images behind frozen edges that shuffle their patches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.images.collecting.linking import Row, ids
from flwr_splitmix.attacks.images.collecting.own_patches import Pool, own_patches
from flwr_splitmix.attacks.images.placing.arranging import MAX_PATCHES
from flwr_splitmix.attacks.images.placing.edge_reader import EdgeReader
from flwr_splitmix.attacks.images.placing.edges import ShuffledEdge
from flwr_splitmix.attacks.images.placing.patch_map import PatchMap
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Release

MAX_PUBLIC = 8_000
"""Most public images that are used."""

MIN_LINKED_BATCHES = 3
"""Fewest batches of one image whose patches are compared; fewer have too much else in common."""

MAX_LINKED_BATCHES = 16
"""Most batches of one image whose patches are compared, the newest ones."""

KEPT_BYTES = 2**30
"""Most memory for patches of batches that are kept while others are compared with them."""


class Unshuffle(Attack):
    """Undoes what a frozen edge does behind its shuffle, reads the patches, and orders them.

    A frozen transformer block treats all slots alike, so a fixed point inverts it whatever the
    order is. If the embedding maps each patch by itself, patches are then read exactly, and their
    places found by a Gaussian of public images; if patches were exchanged within the batch, among
    the places of all rows. If tokens are linear in the whole image, as those of its spectrum are,
    order and image are found in turns. See `EdgeReader`.

    If patches were exchanged within the batch, and ids show for three batches or more that the same
    image was in them, its patches are those that all of them have: they are placed as if they had
    been shuffled within the image only. All its rows in these batches then have the same guess.

    Attributes
    ----------
    edge, reader
        The frozen edge, and what reads the tokens behind its shuffle.
    """

    name: ClassVar[str] = "unshuffle"
    goal: ClassVar[Goal] = "images"
    needs: ClassVar[frozenset[str]] = frozenset({"smashed data", "lower", "public data"})
    source: ClassVar[str] = "ours"

    def learn(self, view: View, public: Pictures | None) -> None:
        """Take the edge apart, and fit expectations and Gaussians to public images."""
        assert public is not None, "`fit` refuses without public data"
        knowledge = view.knowledge
        self.edge = ShuffledEdge.of(knowledge, self.budget.device)
        pictures = public.fitted(knowledge.image_shape).take(slice(0, MAX_PUBLIC))
        self.edge.learn_to_undo(view, pictures, self.seed)
        self.reader = self._reader_of(self.edge, pictures, view)
        self._of_image: EdgeReader | None = None
        if self.edge.shuffle.across_batch and linked_rows(view):
            self._of_image = self._reader_of(self.edge.within_images(), pictures, view)

    def _reader_of(self, edge: ShuffledEdge, pictures: Pictures, view: View) -> EdgeReader:
        return EdgeReader(
            edge,
            pictures,
            labelled="labels" in view.available,
            budget=self.budget,
            seed=self.seed,
            name=self.name,
        )

    def patches_of(self, release: Release) -> Tensor:
        """Return the patches (b, N, P) in the slots of a release, if each is mapped by itself."""
        embedding = self.reader.map
        assert isinstance(embedding, PatchMap), "this embedding has no patches"
        return embedding.read(self.edge.undo(release.smashed))

    def run(self, view: View) -> Guess:
        """Reconstruct every row.

        Rows of a release that holds nothing, or is not reached in time, get what is expected of
        their labels.
        """
        linked = self._linked(view)
        values, sure, where = [], [], []
        for number, release in enumerate(view.releases):
            rows = len(release.smashed)
            linked_guesses = [linked.get((number, row)) for row in range(rows)]
            labels, certain = self.reader.classes_of(release.labels), None
            if all(linked_guesses):
                images = torch.empty(rows, *view.knowledge.image_shape)
            elif not bool(release.smashed.any()) or (number and self.budget.must_end()):
                images = self.reader.unseen(rows, labels)
            else:
                images, certain = self.reader.guessed(self.edge.undo(release.smashed), labels)
            certain = torch.full((rows,), -1e6) if certain is None else certain
            for row, guess in enumerate(linked_guesses):
                if guess is not None:
                    images[row], certain[row] = guess
            values.append(images)
            sure.append(certain)
            where += [(number, row) for row in range(rows)]
            self.budget.progress(self.name, number + 1, len(view.releases))
        return Guess(torch.cat(values), torch.cat(sure), where)

    def _linked(self, view: View) -> Mapping[Row, tuple[Tensor, Tensor]]:
        """Return image and confidence of rows whose image was in several batches, if in time."""
        guesses: dict[Row, tuple[Tensor, Tensor]] = {}
        reader = self._of_image
        if reader is None:
            return guesses
        embedding = reader.map
        assert isinstance(embedding, PatchMap), "others are refused where patches are exchanged"

        batch = self.patches_of(view.releases[0]).float()

        @lru_cache(max(MAX_LINKED_BATCHES, KEPT_BYTES // max(1, batch.nbytes)))
        def patches_of(number: int) -> Tensor:
            return self.patches_of(view.releases[number]).float()

        groups = linked_rows(view)
        for count, rows in enumerate(groups, start=1):
            if guesses and self.budget.must_end():
                break
            patches = own_patches(pools_of(view, rows[-MAX_LINKED_BATCHES:], patches_of)).double()
            newest, row = rows[-1]
            labels = reader.classes_of(view.releases[newest].labels)
            labels = None if labels is None else labels[row : row + 1]
            images, certain = reader.guessed(embedding.tokens(patches)[None], labels)
            assert certain is not None, "the patches of one image are few enough"
            guesses |= dict.fromkeys(rows, (images[0], certain[0]))
            self.budget.progress(self.name, count, len(groups))
        return guesses


def pools_of(view: View, rows: Sequence[Row], patches_of: Callable[[int], Tensor]) -> list[Pool]:
    """Return the batches that one image's rows were in.

    Parameters
    ----------
    patches_of
        From a release's position to its patches (b, N, P).
    """
    named, own_ids = [], set()
    for number, row in rows:
        examples = view.releases[number].ids
        assert examples is not None, "rows are linked by ids"
        named.append({example: at for at, example in enumerate(examples.tolist())})
        own_ids.add(int(examples[row]))
    shared = sorted(set(named[0]).intersection(*named[1:]) - own_ids)
    return [
        Pool(patches_of(number), row, [rows_of[example] for example in shared])
        for (number, row), rows_of in zip(rows, named, strict=True)
    ]


def linked_rows(view: View) -> list[list[Row]]:
    """Return the rows of each image that was in `MIN_LINKED_BATCHES` batches, by client.

    An image's rows are ordered oldest first, and linked by ids: empty if none were sent. Releases
    that hold nothing are left out, and there is nothing if one has too many patches to compare.
    """
    sizes = {release.smashed.shape[:2].numel() for release in view.releases}
    if max(sizes, default=0) > MAX_PATCHES:
        return []
    groups = []
    for rows in (ids(view.releases) or {}).values():
        full = [(place, row) for place, row in rows if bool(view.releases[place].smashed.any())]
        if len({place for place, _ in full}) >= MIN_LINKED_BATCHES:
            groups.append(full)
    return sorted(groups, key=lambda rows: str(view.releases[rows[0][0]].client))
