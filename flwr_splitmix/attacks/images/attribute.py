"""The owners of a mixture's patches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.images.embedding.joint_parts import (
    JointParts,
    joint_parts,
    share_right,
)
from flwr_splitmix.attacks.images.embedding.subspaces import (
    Subspace,
    client_subspaces,
    nearest_subspace,
)
from flwr_splitmix.attacks.images.linear_decoder import painter_of, set_apart
from flwr_splitmix.attacks.images.mixtures.alignment import ownership_loss
from flwr_splitmix.attacks.images.mixtures.grouping import (
    agreement,
    cluster,
    rows_share_masks,
    shared_directions,
)
from flwr_splitmix.attacks.images.networks.example import (
    Example,
    public_examples,
    queries,
    whole_releases,
)
from flwr_splitmix.attacks.images.networks.training import BATCH, Reader, train_reader
from flwr_splitmix.attacks.images.networks.transformer import SIZES, TokenTransformer
from flwr_splitmix.attacks.images.separate import require_mixtures
from flwr_splitmix.attacks.pictures import Pictures

MIN_CERTAINTY = 0.9
"""Least mean certainty at which distances to subspaces are used; rounding gives about 0.5."""

MIN_MASK_ACCURACY = 0.9
"""If the likeliest masks have as many patches of public mixtures right, nothing is trained."""

CHOICE_IMAGES = 128
"""Public images on which the attacker bases its choice."""


class Attribute(Attack):
    """Determines the owner of each patch of a mixture, up to the numbering of its members.

    Uses the first of these that the view allows:

    - Several known lower segments: a token lies in the subspace of the segment that made it,
      wherever it was moved. Exact if they are patch embeddings.
    - One known lower segment: the mask under which the patches that its inverse reads are
      likeliest, see `JointMask`; or a transformer that learns from mixtures of public images which
      patches belong together, if that is better on others.
    - None known: tokens of one embedding vary in common directions, whatever its weights.

    Settings
    --------
    votes
        Whether the rows of a release, which share a mask, decide together (default True); without,
        the likeliest mask of all rows is not looked for.
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
        knowledge = view.knowledge
        self._subspaces: list[Subspace] = []
        self._reader: Reader | None = None
        self._joint: JointParts | None = None
        if knowledge.lowers is None:
            return
        if public is None:
            raise NotApplicable(f"the attack {self.name!r} needs public images, and there are none")
        pictures = public.fitted(knowledge.image_shape)
        self._subspaces = [*client_subspaces(view, pictures, self.budget).values()]
        if self._are_distinguishable(view, pictures):
            return
        self._subspaces = []
        judges, others = set_apart(pictures, CHOICE_IMAGES, self.seed)
        painter = painter_of(view, others, self.budget)
        joint = None
        if self.setting.get("votes", True):
            joint = joint_parts(view, others, painter, self.budget, self.seed)
        mixtures = (
            [] if joint is None else whole_releases(view, judges, CHOICE_IMAGES, self.seed + 1)
        )
        mixtures = [each for each in mixtures if each.images.shape[1] == knowledge.k]
        right = 0.0
        if joint is not None and mixtures:
            right = _share_right(lambda each: joint(each.query()).owners, mixtures)
            if right >= MIN_MASK_ACCURACY:
                self._joint = joint
                return
        reader = train_reader(
            lambda width: TokenTransformer(
                width, knowledge.geometry.patches, knowledge.geometry.prefix, knowledge.k,
                **SIZES[self.budget.scale],
            ),
            public_examples(view, others if mixtures else pictures, BATCH, self.seed),
            _loss,
            steps=self.epochs[self.budget.scale] * max(1, len(pictures) // BATCH),
            lr=self.setting.get("lr", 1e-3),
            seed=self.seed,
            budget=self.budget,
            loop=self.name,
        )  # fmt: skip
        self._reader = reader
        if right > _share_right(lambda each: self._learned(reader, each.tokens, view)[0], mixtures):
            self._joint, self._reader = joint, None

    def _are_distinguishable(self, view: View, public: Pictures) -> bool:
        """Return whether the subspaces reveal the owners in public mixtures."""
        if len(self._subspaces) < 2:
            return False
        example = next(public_examples(view, public, BATCH, self.seed))
        tokens = example.tokens[:, view.knowledge.geometry.prefix :]
        return float(nearest_subspace(tokens, self._subspaces)[1].mean()) > MIN_CERTAINTY

    def run(self, view: View) -> Guess:
        """Guess the owner of each patch."""
        knowledge = view.knowledge
        owners, sure, where = [], [], []
        for place, release in enumerate(view.releases):
            tokens = release.smashed[:, knowledge.geometry.prefix :]
            if self._subspaces:
                owner, certain = nearest_subspace(tokens, self._subspaces)
            elif self._joint is not None:
                (query,) = queries(replace(release, owners=None), knowledge)
                owner = self._joint(query).owners
                certain = torch.ones(owner.shape)
            elif self._reader is not None:
                owner, certain = self._learned(self._reader, release.smashed, view)
            elif self._votes(view):
                alike = shared_directions(tokens)
                owner = cluster(alike, knowledge.k, self.seed).expand(tokens.shape[:2])
                certain = alike.amax(1).expand(tokens.shape[:2])
            else:
                raise NotApplicable(
                    f"rows of {knowledge.method} have masks of their own, and no lower segment is "
                    "known: nothing shows whose a patch is"
                )
            owners.append(owner.clone())
            sure.append(certain.float().mean(1))
            where += [(place, row) for row in range(len(tokens))]
        return Guess(torch.cat(owners), torch.cat(sure), where)

    def _votes(self, view: View) -> bool:
        return bool(self.setting.get("votes", True)) and rows_share_masks(view.knowledge.mixer)

    def _learned(self, reader: Reader, tokens: Tensor, view: View) -> tuple[Tensor, Tensor]:
        """Return owners (b, N) that the transformer finds in a release, and how certain it is."""
        chances = reader.read(tokens, None, self.budget.device).softmax(2)
        certain, owner = chances.max(2)
        if self._votes(view) and len(chances) > 1:
            alike = agreement(chances)
            owner = cluster(alike, view.knowledge.k, self.seed).expand_as(owner)
        return owner, certain


def _share_right(find: Callable[[Example], Tensor], mixtures: Sequence[Example]) -> float:
    """Return which share of patches of public mixtures has its owner; 0 without mixtures."""
    if not mixtures:
        return 0.0
    return sum(share_right(find(each), each) for each in mixtures) / len(mixtures)


def _loss(logits: Tensor, example: Example) -> Tensor:
    assert example.owners is not None, "patches of a mixture that is not a sum have owners"
    return ownership_loss(logits, example.owners)
