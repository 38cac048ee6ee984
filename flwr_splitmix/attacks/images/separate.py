"""All images of one mixture, by the members' embeddings, or by a transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor, nn

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.fitted import Budget, NotApplicable
from flwr_splitmix.attacks.images.embedding.exact_parts import exact_ways
from flwr_splitmix.attacks.images.embedding.joint_parts import joint_ways
from flwr_splitmix.attacks.images.linear_decoder import set_apart
from flwr_splitmix.attacks.images.mixtures.alignment import MAX_MEMBERS, separation_loss
from flwr_splitmix.attacks.images.mixtures.grouping import moves_patches
from flwr_splitmix.attacks.images.networks.example import Example, Query, whole_releases
from flwr_splitmix.attacks.images.networks.reading import Paint, guess_images
from flwr_splitmix.attacks.images.networks.trained import TrainedAttack
from flwr_splitmix.attacks.images.networks.transformer import decoder_of
from flwr_splitmix.attacks.knowledge import Knowledge
from flwr_splitmix.attacks.pictures import Pictures

CLEAR, CLEAR_IF_MOVED = 0.25, 0.75
"""Below this part of the mean public image's error, what needs no training is not compared.

The second is for patches that have been moved: of these the transformer reads next to nothing.
"""

ROWS = 64
"""Public mixtures on which the attacker bases its choice."""

SHUFFLED_ROWS = 24
"""As many, of moved patches: each takes long."""


class _Transformer(TrainedAttack):
    """A transformer with one output per member, trained with the best assignment of these."""

    name: ClassVar[str] = "separate"
    epochs: ClassVar[Mapping[str, int]] = {"smoke": 2, "cpu": 16, "paper": 100}
    settings: ClassVar[tuple[Mapping[str, Any], ...]] = ({"lr": 1e-3}, {"lr": 2e-3})

    def network(self, knowledge: Knowledge, width: int) -> nn.Module:
        """Make the transformer."""
        return decoder_of(knowledge, width, self.budget.scale, images=knowledge.k)

    def loss(self, prediction: Tensor, example: Example) -> Tensor:
        """Return the mean squared error under the best assignment."""
        return separation_loss(prediction, example.images)

    def paint(self, query: Query) -> Tensor:
        """Return images (b, k, C, H, W) of a query's rows."""
        return self.reader.read(query.tokens, query.mask, self.budget.device)


Train = Callable[[View, Pictures, Budget], _Transformer]
"""Returns the transformer, trained on public images."""


class Separate(Attack):
    """Reconstructs the images of all members of a mixture, in no order.

    Mixtures are first taken apart without training:

    - *Several known lower segments*, which differ where they are not averaged: whose a patch is
      follows from the subspaces of the clients' tokens, what it shows from the owner's linear
      inverse, and the patches of the others are painted by Gaussians of public images. If patches
      have been moved, these Gaussians place them too. Sums are solved by least squares for each
      possible group of clients.
    - *One for all*, such as averaged ones or the run's first: its linear inverse shows each patch,
      and the mask that all rows of a release share is the one under which the members' patches are
      likeliest, by Gaussians of public images; see `JointMask`. The others' are painted likewise.

    If this reads public mixtures with less than `CLEAR` of the mean image's error (moved patches:
    `CLEAR_IF_MOVED`), nothing is trained. Otherwise a transformer with one output per member is
    trained as well, with the loss of the best assignment of outputs to members, and the one that
    is better on public mixtures is used. With one known lower segment for all, only the
    transformer is left for sums and moved patches.

    If masks are known, there is nothing to separate, and `linear-decoder` is the stronger attack.

    Parameters
    ----------
    train
        Trains the transformer, if it is needed; None trains it with the settings.
    **setting
        Those of the transformer.

    Attributes
    ----------
    exact
        Whether the last `fit` chose what needs no training.
    """

    name: ClassVar[str] = "separate"
    goal: ClassVar[Goal] = "images"
    needs: ClassVar[frozenset[str]] = TrainedAttack.needs
    settings: ClassVar[tuple[Mapping[str, Any], ...]] = _Transformer.settings
    source: ClassVar[str] = "ours"
    exact = False

    def __init__(self, *, train: Train | None = None, **setting: Any) -> None:
        super().__init__(**setting)
        self._train = train or self._as_set

    def check(self, view: View) -> None:
        """Raise NotApplicable without mixtures of unknown masks, or if too many are mixed."""
        require_mixtures(view)
        super().check(view)

    @classmethod
    def tune(
        cls, view: View, public: Pictures | None, budget: Budget | None = None, **options: Any
    ) -> Self:
        """Return the fitted attack, with the transformer's best setting if it is trained at all.

        See `Attack.tune`, which also describes the options.
        """
        attack = cls(train=partial(_Transformer.tune, **options))
        attack.fit(view, public, budget, seed=options.get("seed", 0))
        return attack

    def _as_set(self, view: View, public: Pictures, budget: Budget) -> _Transformer:
        attack = _Transformer(**self.setting)
        attack.fit(view, public, budget, seed=self.seed)
        return attack

    def learn(self, view: View, public: Pictures | None) -> None:
        """Choose between the exact way and the transformer, which is trained if it may be better.

        Training has half of the time that is left then, as the exact way needs some as well.
        """
        assert public is not None, "`fit` refuses without public data"
        knowledge = view.knowledge
        pictures = public.fitted(knowledge.image_shape)
        moved = moves_patches(knowledge.mixer)
        rows = SHUFFLED_ROWS if moved else ROWS
        judges, others = set_apart(pictures, rows * knowledge.k, self.seed)
        ways = exact_ways(view, others, self.budget, self.seed)
        mixtures = whole_releases(view, judges, rows, self.seed + 1)
        if any(each.images.shape[1] != knowledge.k for each in mixtures):
            mixtures = []  # too few images to mix as many
        mean = pictures.images.mean(0)
        floor = error_on(lambda _: mean.expand(1, knowledge.k, *mean.shape), mixtures)
        clear = (CLEAR_IF_MOVED if moved else CLEAR) * floor
        errors = [error_on(way, mixtures) for way in ways]
        if mixtures and min(errors, default=inf) >= clear:
            joint = joint_ways(view, others, self.budget, self.seed)
            ways += joint
            errors += [error_on(way, mixtures) for way in joint]
        least = min(errors, default=inf)
        self.exact = least < clear
        if not self.exact:
            if ways and mixtures:
                trained = self._train(view, others, self.budget.share(2))
            else:
                trained = self._train(view, pictures, self.budget.again(self.budget.left))
            self.setting = trained.setting
            self._paint: Paint = trained.paint
            self.exact = least < error_on(trained.paint, mixtures)
        if self.exact:
            self._paint = ways[errors.index(least)]

    def run(self, view: View) -> Guess:
        """Reconstruct the images behind every row."""
        return guess_images(view, self._paint, self.budget.device)


def error_on(paint: Paint, mixtures: Sequence[Example]) -> float:
    """Return the mean squared error of all members' images in the best assignment.

    It is infinite without mixtures.
    """
    if not mixtures:
        return inf
    errors = [
        float(separation_loss(paint(each.query()).clamp(0, 1), each.images)) for each in mixtures
    ]
    return float(np.average(errors, weights=[len(each) for each in mixtures]))


def require_mixtures(view: View) -> None:
    """Raise NotApplicable unless the view holds mixtures whose patches have unknown owners."""
    k = view.knowledge.k
    if k < 2 or all(r.client is not None or r.owners is not None for r in view.releases):
        raise NotApplicable(
            f"the view of the adversary {view.adversary!r} on {view.knowledge.method} has no "
            "mixture of several clients' images whose parts it does not know anyway, and only such "
            "are taken apart"
        )
    if k > MAX_MEMBERS:
        raise NotApplicable(f"mixtures of {k} are not taken apart; at most {MAX_MEMBERS} are")
