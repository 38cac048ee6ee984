"""The owners of a mixture's patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.images.embedding.subspaces import (
    Subspace,
    client_subspaces,
    nearest_subspace,
)
from flwr_splitmix.attacks.images.mixtures.alignment import ownership_loss
from flwr_splitmix.attacks.images.mixtures.grouping import (
    agreement,
    cluster,
    rows_share_masks,
    shared_directions,
)
from flwr_splitmix.attacks.images.networks.example import Example, public_examples
from flwr_splitmix.attacks.images.networks.training import BATCH, train_reader
from flwr_splitmix.attacks.images.networks.transformer import SIZES, TokenTransformer
from flwr_splitmix.attacks.images.separate import require_mixtures
from flwr_splitmix.attacks.pictures import Pictures

SURE = 0.9
"""Least mean certainty at which distances to subspaces are used; rounding gives about 0.5."""


class Attribute(Attack):
    """Determines the owner of each patch of a mixture, up to the numbering of its members.

    Uses the first of these that the view allows:

    - Several known lower segments: a token lies in the subspace of the segment that made it,
      wherever it was moved. Exact if they are patch embeddings.
    - One known lower segment: a transformer learns from mixtures of public images which patches
      belong together.
    - None known: tokens of one embedding vary in common directions, whatever its weights.

    Settings
    --------
    votes
        Whether the rows of a release, which share a mask, vote together (default True).
    """

    name: ClassVar[str] = "attribute"
    goal: ClassVar[Goal] = "owners"
    needs: ClassVar[frozenset[str]] = frozenset({"smashed data"})
    epochs: ClassVar[Mapping[str, int]] = {"smoke": 2, "cpu": 16, "paper": 100}
    source: ClassVar[str] = "ours"

    def check(self, view: View) -> None:
        """Raise NotApplicable without mixtures of unknown owners, or if their patches are sums."""
        require_mixtures(view)
        super().check(view)
        if view.knowledge.mixer.cover == "weighted":
            raise NotApplicable(
                f"patches of {view.knowledge.method} are sums of all members' patches: none is "
                "one's own"
            )

    def learn(self, view: View, public: Pictures | None) -> None:
        """Learn what the view's knowledge allows."""
        known = view.knowledge
        self._subspaces: list[Subspace] = []
        self._reader = None
        if known.lowers is None:
            return
        if public is None:
            raise NotApplicable(f"the attack {self.name!r} needs public images, and there are none")
        pictures = public.fitted(known.image_shape)
        self._subspaces = [*client_subspaces(view, pictures, self.budget).values()]
        if self._told_apart(view, pictures):
            return
        self._subspaces = []
        self._reader = train_reader(
            lambda width: TokenTransformer(
                width, known.geometry.patches, known.geometry.prefix, known.k,
                **SIZES[self.budget.scale],
            ),
            public_examples(view, pictures, BATCH, self.seed),
            _loss,
            steps=self.epochs[self.budget.scale] * max(1, len(pictures) // BATCH),
            lr=self.setting.get("lr", 1e-3),
            seed=self.seed,
            budget=self.budget,
            what=self.name,
        )  # fmt: skip

    def _told_apart(self, view: View, public: Pictures) -> bool:
        """Return whether the subspaces tell the owners in public mixtures."""
        if len(self._subspaces) < 2:
            return False
        example = next(public_examples(view, public, BATCH, self.seed))
        tokens = example.tokens[:, view.knowledge.geometry.prefix :]
        return float(nearest_subspace(tokens, self._subspaces)[1].mean()) > SURE

    def run(self, view: View) -> Guess:
        """Guess the owner of each patch."""
        known = view.knowledge
        together = bool(self.setting.get("votes", True)) and rows_share_masks(known.mixer)
        owners, sure, where = [], [], []
        for place, release in enumerate(view.releases):
            tokens = release.smashed[:, known.geometry.prefix :]
            if self._subspaces:
                owner, certain = nearest_subspace(tokens, self._subspaces)
            elif self._reader is not None:
                logits = self._reader.read(release.smashed, None, self.budget.device)
                chances = logits.softmax(2)
                certain, owner = chances.max(2)
                if together and len(chances) > 1:
                    owner = cluster(agreement(chances), known.k, self.seed).expand_as(owner)
            elif together:
                alike = shared_directions(tokens)
                owner = cluster(alike, known.k, self.seed).expand(tokens.shape[:2])
                certain = alike.amax(1).expand(tokens.shape[:2])
            else:
                raise NotApplicable(
                    f"rows of {known.method} have masks of their own, and no lower segment is "
                    "known: nothing tells whose a patch is"
                )
            owners.append(owner.clone())
            sure.append(certain.float().mean(1))
            where += [(place, row) for row in range(len(tokens))]
        return Guess(torch.cat(owners), torch.cat(sure), where)


def _loss(logits: Tensor, example: Example) -> Tensor:
    assert example.owners is not None, "patches of a mixture that is not a sum have owners"
    return ownership_loss(logits, example.owners)
