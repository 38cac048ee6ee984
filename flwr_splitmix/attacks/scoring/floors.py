"""Floors of reconstructed images: what is reached without the victims' smashed data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.attacks.base import Attack, Guess, View
from flwr_splitmix.attacks.guess import checked_guess
from flwr_splitmix.attacks.pictures import Pictures
from flwr_splitmix.attacks.release import Release
from flwr_splitmix.attacks.scoring.pairs import best_blind_images, guessed_blindly


@dataclass(frozen=True)
class Floors:
    """Results reached without the victims' smashed data.

    Parameters
    ----------
    public
        Images that are not victims.
    prior
        The attack's images for a row of an empty release, (m, C, H, W); None if it makes none.
    labels
        For each release of the view the labels that the adversary received, int64 (b,) or soft,
        (b, L); None for a release without. () if there are none at all.
    prior_at
        The attack's images for an empty release, by the release and the row whose label it was
        told; those of other rows are `prior`.
    """

    public: Pictures
    prior: Tensor | None = None
    labels: Sequence[Tensor | None] = ()
    prior_at: Mapping[tuple[int, int], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, attack: Attack, view: View, public: Pictures) -> Floors:
        """Return the floors of a fitted attack, by running it on empty releases.

        Labels are not smashed data, so an empty release keeps its labels: what an attack makes of
        a label alone is a floor, and not a leak through the smashed data. It is run on every class
        that the adversary received; if labels are soft, on those of every row.
        """
        labels = [release.labels for release in view.releases]
        if attack.goal != "images" or not view.releases:
            return cls(public, labels=labels)
        empty = emptied(view)
        blind = replace(view, releases=empty)
        try:
            guess = checked_guess(attack, attack.run(blind), blind)
        except (TypeError, ValueError) as error:
            raise type(error)(f"on an empty release, whose smashed data are 0, {error}") from error
        guesses_at: dict[tuple[int, int], list[Tensor]] = {}
        for place, image in zip(guess.where, guess.values.cpu(), strict=True):
            guesses_at.setdefault(place, []).append(image)
        images_at = {place: torch.stack(images) for place, images in guesses_at.items()}
        prior = next(iter(images_at.values()), None)
        if not _soft(view):
            images_at = _of_equal_class(images_at, empty, view)
        return cls(public, prior, labels, images_at)

    def blind(
        self,
        guess: Guess,
        pairs: Sequence[tuple[int, int]],
        images: Tensor,
        seed: int,
    ) -> dict[str, Tensor]:
        """Return blind guesses at each pair, (n, C, H, W), by the name of their error.

        Parameters
        ----------
        guess, pairs
            The guess whose rows are guessed at, and its `pairs_of`.
        images
            (n, C, H, W): the victim of each pair.
        seed
            For the best fixed images.
        """
        public = self.public.images
        blind = {"mean_image_mse": public.mean(0, keepdim=True).expand_as(images)}
        if any(labels is not None for labels in self.labels):
            blind["class_mean_mse"] = guessed_blindly(self._class_means(), guess, pairs, images)
        if (prior := self.prior) is not None:

            def prior_images(guesses: int, _: int, place: tuple[int, int]) -> Tensor:
                ready = self.prior_at.get(place, prior).float()
                return ready[torch.arange(guesses) % len(ready)]

            blind["prior_mse"] = guessed_blindly(prior_images, guess, pairs, images)
        # The assignment of several guesses to a row's images favours blind guesses as well.
        if len(set(guess.where)) < len(guess.where):
            best = cache(lambda guesses, members: best_blind_images(public, guesses, members, seed))
            blind["blind_mse"] = guessed_blindly(
                lambda guesses, members, _: best(guesses, members), guess, pairs, images
            )
        return blind

    def _class_means(self) -> Callable[[int, int, tuple[int, int]], Tensor]:
        """Return a maker of blind guesses at a row from the labels that were received for it.

        One guess is the mean public image of the row's class, or the classes' means weighted by a
        soft label. Several guesses are the means of as many classes, the heaviest ones. Without a
        label, or public images of its classes, it is the mean of all.
        """
        public, received = self.public, [labels for labels in self.labels if labels is not None]
        classes = 1 + max(
            int(each.max()) if each.dim() == 1 else each.shape[1] - 1
            for each in (*received, public.labels)
        )
        members = _weights(public.labels, classes)
        counts = members.sum(0)
        flat = public.images.double().flatten(1)
        means = members.T @ flat / counts.clamp_min(1e-12)[:, None]

        def class_images(guesses: int, _: int, place: tuple[int, int]) -> Tensor:
            labels = self.labels[place[0]]
            weights = counts.new_zeros(classes)
            if labels is not None:
                weights = _weights(labels[place[1], None], classes)[0] * (counts > 0)
            if float(weights.sum()) <= 0:
                images = flat.mean(0, keepdim=True)
            elif guesses == 1:
                images = (weights @ means / weights.sum())[None]
            else:
                heaviest = weights.argsort(descending=True)[
                    : min(guesses, int((weights > 0).sum()))
                ]
                images = means[heaviest]
            return images[torch.arange(guesses) % len(images)].reshape(-1, *public.shape)

        return class_images


def emptied(view: View) -> list[Release]:
    """Return releases with their smashed data, gradients and losses removed.

    The first one is repeated until every class that the adversary received is a row's label. If
    labels are soft, or of several classes, it is every release with its own.
    """
    if _soft(view):
        return [_empty(release) for release in view.releases]
    empty = _empty(view.releases[0])
    received = [release.labels for release in view.releases if release.labels is not None]
    if empty.labels is None:
        return [empty]
    classes, rows = torch.unique(torch.cat(received)), len(empty.smashed)
    times = -(-len(classes) // rows)
    dealt = classes[torch.arange(times * rows) % len(classes)].reshape(times, rows)
    return [replace(empty, labels=labels) for labels in dealt]


def _empty(release: Release) -> Release:
    def zeros(part: Tensor | None) -> Tensor | None:
        return None if part is None else torch.zeros_like(part)

    return replace(
        release,
        smashed=torch.zeros_like(release.smashed),
        gradient=zeros(release.gradient),
        loss=zeros(release.loss),
        undone=zeros(release.undone),
    )


def _soft(view: View) -> bool:
    """Return whether any labels are soft, or of several classes."""
    return any(release.labels is not None and release.labels.dim() > 1 for release in view.releases)


def _of_equal_class(
    images_at: Mapping[tuple[int, int], Tensor], empty: Sequence[Release], view: View
) -> dict[tuple[int, int], Tensor]:
    """Return, for rows of a view, what was made of empty rows of the same class."""
    by_class: dict[int, Tensor] = {}
    for (release, row), images in images_at.items():
        if (labels := empty[release].labels) is not None:
            by_class.setdefault(int(labels[row]), images)
    return {
        (place, row): by_class[label]
        for place, release in enumerate(view.releases)
        if release.labels is not None
        for row, label in enumerate(release.labels.tolist())
        if label in by_class
    }


def _weights(labels: Tensor, classes: int) -> Tensor:
    """Return labels (b,) or (b, L) as weights of classes, float64 (b, classes), at least 0."""
    if labels.dim() == 1:
        return F.one_hot(labels.cpu().long(), classes).double()
    return F.pad(labels.cpu().double(), (0, classes - labels.shape[1])).clamp_min(0)
