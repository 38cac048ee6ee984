"""`membership`: whether an example was trained on, inferred from the upper segment's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.images.networks.membership_scores import (
    confidence_logit,
    lira,
    rmia,
    train_membership,
)
from flwr_splitmix.attacks.images.networks.shadows import (
    Shadow,
    losses,
    soft_targets,
    train_shadows,
)
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Release

_SHADOWS = {"smoke": (2, 16, 2), "cpu": (3, 200, 8), "paper": (16, 2000, 60)}
"""By scale: number of shadow models, images per model, epochs."""

_REFERENCE_SCORES = {"rmia": 1, "lira": 8}
"""Scores that compare with shadow models, and how many models each needs."""

_EPOCHS = {"smoke": 2, "cpu": 30, "paper": 60}
"""Epochs of the network, by scale."""


class Membership(Attack):
    """Trains shadow models on public images and learns from them how members differ.

    There are two scores, and with many shadow models LiRA's as a third: a network of three layers
    on mixture, soft label and loss; and RMIA's, which compares the loss with that of models that
    have not seen the example. RMIA needs the lower segment: only then can shadow models process
    the victims' smashed data. The score that best detects members of a held-out shadow model is
    used.

    Source: DP-CutMixSL, section 6; Zarifzadeh et al., 2024; Carlini et al., 2022.
    """

    name = "membership"
    goal: ClassVar[Goal] = "membership"
    needs = frozenset({"smashed data", "upper", "labels", "public data"})
    source = "DP-CutMixSL, section 6; RMIA; LiRA"

    def learn(self, view: View, public: Pictures | None) -> None:
        """Train shadow models and the network, and choose the score."""
        assert public is not None
        count, images, epochs = _SHADOWS[self.budget.scale]
        self.shadows = train_shadows(
            view.knowledge,
            public.fitted(view.knowledge.image_shape),
            count=count,
            images=images,
            epochs=epochs,
            budget=self.budget,
            seed=self.seed,
        )
        self.classes = view.knowledge.num_classes
        rng = np.random.default_rng(self.seed)
        self.seen = [self._shadow_releases(view, shadow, rng) for shadow in self.shadows]
        self.score = self._choose(view)
        self.net = self._network(self.seen)

    def run(self, view: View) -> Guess:
        """Score every example or mixture of the view."""
        upper = view.knowledge.upper
        assert upper is not None
        labelled = [release for release in view.releases if release.labels is not None]
        where = [
            (number, row)
            for number, release in enumerate(view.releases)
            if release.labels is not None
            for row in range(len(release.smashed))
        ]
        if self.score == "network":
            features = [self._features(r, losses(upper, r, self.classes)) for r in labelled]
            with torch.inference_mode():
                values = self.net(torch.cat(features)).double()
        else:
            values = self._by_references(self.score, upper, self.shadows, labelled)
        return Guess(values, (values - values.median()).abs(), where)

    def _shadow_releases(
        self, view: View, shadow: Shadow, rng: np.random.Generator
    ) -> tuple[list[Release], list[Release]]:
        """Return a shadow model's releases of its members and of non-members."""
        both = (
            view.knowledge.simulate(
                pictures.images,
                pictures.labels,
                rng,
                lower=shadow.lowers,
                adversary=view.adversary,
            )
            for pictures in (shadow.members, shadow.others)
        )
        members, others = (list[Release](releases) for releases in both)
        return members, others

    def _features(self, release: Release, row_losses: Tensor) -> Tensor:
        tokens = release.smashed.float()
        return torch.cat(
            [
                tokens.mean(1),
                tokens.std(1),
                soft_targets(release, self.classes),
                row_losses.float()[:, None],
            ],
            1,
        )

    def _network(self, shadow_releases: Sequence[tuple[list[Release], list[Release]]]) -> nn.Module:
        features, members = [], []
        for shadow, (inside, outside) in zip(self.shadows, shadow_releases, strict=False):
            for releases, member in ((inside, True), (outside, False)):
                for release in releases:
                    row_losses = losses(shadow.upper, release, self.classes)
                    features.append(self._features(release, row_losses))
                    members.append(torch.full((len(row_losses),), member))
        return train_membership(
            torch.cat(features),
            torch.cat(members),
            epochs=_EPOCHS[self.budget.scale],
            seed=self.seed,
        )

    def _choose(self, view: View) -> str:
        """Return the score that best detects the last shadow model's members, given the others."""
        from sklearn.metrics import roc_auc_score

        if len(self.shadows) < 2 or "lower" not in view.available:
            return "network"
        *others, last = self.shadows
        inside, outside = self.seen[-1]
        releases = [*inside, *outside]
        row_losses = [losses(last.upper, release, self.classes) for release in releases]
        truth = np.repeat(
            [i < len(inside) for i in range(len(row_losses))], [len(v) for v in row_losses]
        )
        net = self._network(self.seen[:-1])
        features = [self._features(r, v) for r, v in zip(releases, row_losses, strict=True)]
        with torch.inference_mode():
            reached = {"network": roc_auc_score(truth, net(torch.cat(features)).numpy())}
        for score in _REFERENCE_SCORES:
            if len(others) >= _REFERENCE_SCORES[score]:
                values = self._by_references(score, last.upper, others, releases)
                reached[score] = roc_auc_score(truth, values.numpy())
        return max(reached, key=lambda score: float(reached[score]))

    def _by_references(
        self,
        score: str,
        upper: nn.Module,
        references: Sequence[Shadow],
        releases: Sequence[Release],
    ) -> Tensor:
        """Score releases under `upper` against models that have not seen their examples: (n,)."""

        def under(model: nn.Module, of: Sequence[Release]) -> Tensor:
            return torch.cat([losses(model, release, self.classes) for release in of])

        def under_all(of: Sequence[Release]) -> Tensor:
            return torch.stack([under(shadow.upper, of) for shadow in references])

        row_losses, reference_losses = under(upper, releases), under_all(releases)
        if score == "lira":
            return lira(
                confidence_logit((-row_losses).exp()), confidence_logit((-reference_losses).exp())
            )
        population = [release for _, outside in self.seen[: len(references)] for release in outside]
        return rmia(
            (-row_losses).exp(),
            (-reference_losses).exp(),
            (-under(upper, population)).exp(),
            (-under_all(population)).exp(),
        )
