"""`labels-public`: the class that smashed data show, by a classifier of public images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Goal, Guess, View
from flwr_splitmix.attacks.fitted import NotApplicable
from flwr_splitmix.attacks.images.label_leaks.public_classifier import WAYS, PublicClassifier
from flwr_splitmix.attacks.knowledge import Knowledge, Lowers
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Release, Simulated
from flwr_splitmix.seeding import generator

MAX_PUBLIC = {"smoke": 1000, "cpu": 4000, "paper": 10_000}
"""Most public images that are used, by scale."""

MAX_CHOICE_IMAGES = 500
"""Largest number of public images for the attacker's choice; a quarter if there are few."""


class LabelsPublic(Attack):
    """Reads labels from what clients send, without any gradient: an image shows its class.

    The attacker releases public images with labels through the lower segment that it knows (in
    the U shape the head; if it has no trained one, that with the run's first weights), fits a
    classifier to these, and applies it to the victims' releases. If it knows a lower segment of
    each client, each client has a classifier of its own.

    Attributes
    ----------
    way
        The classifier that was best on public images held out; see `WAYS`.
    """

    name: ClassVar[str] = "labels-public"
    goal: ClassVar[Goal] = "labels"
    needs: ClassVar[frozenset[str]] = frozenset({"smashed data", "public data"})
    source: ClassVar[str] = "ours"

    def check(self, view: View) -> None:
        """Raise NotApplicable unless smashed data are here, and a lower segment is known."""
        super().check(view)
        if view.knowledge.first is None:
            view.require("lower")

    def learn(self, view: View, public: Pictures | None) -> None:
        """Choose the classifier on public images, as the first client releases them."""
        assert public is not None, "`fit` refuses without public data"
        knowledge = view.knowledge
        pictures = public.fitted(knowledge.image_shape).take(
            slice(0, MAX_PUBLIC[self.budget.scale])
        )
        several = pictures.labels.dim() > 1 or int(pictures.labels.max()) >= knowledge.num_classes
        if several or int(torch.unique(pictures.labels).numel()) < 2:
            raise NotApplicable(
                f"{self.name!r} needs public images of at least two of the victims' "
                f"{knowledge.num_classes} classes, each with one label"
            )
        self._pictures = pictures
        client = min(knowledge.lowers) if isinstance(knowledge.lowers, Mapping) else None
        rows, labels = self._released(view, client)
        self.way = self._choose(rows, labels)
        self._fallback = PublicClassifier(rows, labels, **self.way)
        self._by_client: dict[int | None, PublicClassifier] = {client: self._fallback}

    def _released(self, view: View, client: int | None) -> tuple[Tensor, Tensor]:
        """Return releases of the public images, and the label of each row."""
        knowledge, pictures = view.knowledge, self._pictures
        releases = knowledge.simulate(
            pictures.images,
            pictures.labels,
            generator(self.seed, "public labels"),
            lower=_lower_for(knowledge, client),
            adversary=view.adversary,
        )
        return _joined_rows(releases, self.name), _labels_of(releases, pictures)

    def _choose(self, rows: Tensor, labels: Tensor) -> Mapping[str, Any]:
        """Return the way that reads most labels of rows held out."""
        order = torch.from_numpy(generator(self.seed, "held out").permutation(len(rows)))
        number = min(MAX_CHOICE_IMAGES, len(rows) // 4)
        held_out, others = order[:number], order[number:]
        if not number or int(torch.unique(labels[others]).numel()) < 2:
            return WAYS[0]
        right: list[float] = []
        for way in WAYS:
            if right and self.budget.must_end():
                break
            classifier = PublicClassifier(rows[others], labels[others], **way)
            right.append(float((classifier(rows[held_out])[0] == labels[held_out]).double().mean()))
            self.budget.progress(self.name, len(right), len(WAYS))
        return WAYS[right.index(max(right))]

    def _classifier(self, view: View, client: int | None) -> PublicClassifier:
        """Return that of a client; past the budget, or of one not known, that of the first."""
        lowers = view.knowledge.lowers
        is_known = isinstance(lowers, Mapping) and client in lowers
        if is_known and client not in self._by_client and not self.budget.must_end():
            self._by_client[client] = PublicClassifier(*self._released(view, client), **self.way)
        return self._by_client.get(client, self._fallback)

    def run(self, view: View) -> Guess:
        """Guess the label of every row that was received, if only in part."""
        values, sure, where = [], [], []
        for number, release in enumerate(view.releases):
            if not bool(release.smashed.any()):
                continue
            labels, margins = self._classifier(view, release.client)(_received(release))
            values.append(labels)
            sure.append(margins)
            where += [(number, row) for row in range(len(labels))]
            self.budget.progress(self.name, number + 1, len(view.releases))
        return Guess(torch.cat(values), torch.cat(sure), where)


def _lower_for(knowledge: Knowledge, client: int | None) -> Lowers:
    """Return the lower segment to release public images through: a client's, or that of all."""
    if knowledge.lowers is None:
        assert knowledge.first is not None, "`check` refuses without a first segment"
        return knowledge.first
    lower = knowledge.lower_of(client)
    assert lower is not None
    return lower


def _received(release: Release) -> Tensor:
    """Return smashed data (b, prefix + N, d), as an adversary that knows the share sees them."""
    return release.smashed if release.undone is None else release.undone


def _joined_rows(releases: Sequence[Simulated], name: str) -> Tensor:
    """Return the rows of releases that hold one image each.

    Raises
    ------
    NotApplicable
        If a row shows several images.
    """
    for release in releases:
        assert release.origin is not None
        if release.origin.sources.shape[1] > 1:
            raise NotApplicable(
                f"{name!r} reads the label of one image, and what this adversary receives is made "
                "of several images"
            )
    return torch.cat([_received(release) for release in releases])


def _labels_of(releases: Sequence[Simulated], pictures: Pictures) -> Tensor:
    sources = [release.origin.sources[:, 0] for release in releases if release.origin is not None]
    return pictures.labels[torch.cat(sources)]
