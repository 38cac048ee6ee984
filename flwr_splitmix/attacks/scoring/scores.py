"""Scores of a guess against the truth, per sample, with floors: only scoring uses the truth.

Attacks get no access to these modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.attacks.base import Goal, Guess
from flwr_splitmix.attacks.recording.vault import Truth
from flwr_splitmix.attacks.scoring.floors import Floors
from flwr_splitmix.attacks.scoring.image_scores import (
    Classifier,
    agreements,
    peak_ratios,
    perceptual_distances,
    retrieved,
    squared_errors,
    structures,
)
from flwr_splitmix.attacks.scoring.intervals import (
    Measure,
    batch_curve_measure,
    curve_measures,
    mean_measure,
)
from flwr_splitmix.attacks.scoring.pairs import first_victims, pairs_of
from flwr_splitmix.attacks.scoring.patch_scores import (
    attributed,
    attributed_blindly,
    in_place,
    largest_share,
)

GALLERY = 1000
"""Number of images among which a victim must be the nearest to its reconstruction."""

Row = dict[str, Any]


@dataclass(frozen=True)
class AttackScores:
    """An attack's scores.

    Parameters
    ----------
    rows
        One per sample: "victim" (its position in the truth), "release", "row", "trained",
        "confidence", and its metrics, including floors.
    measures
        The metrics over all samples; the main one is first.
    """

    rows: list[Row]
    measures: list[Measure]

    @property
    def main(self) -> Measure:
        """The measure that the gate uses."""
        return next(measure for measure in self.measures if measure.main)


def score_guess(
    goal: Goal,
    guess: Guess,
    truth: Truth,
    floors: Floors,
    *,
    classifier: Classifier | None = None,
    seed: int = 0,
) -> AttackScores:
    """Score a guess.

    Parameters
    ----------
    classifier
        Classifies reconstructions; None leaves class agreement out.

    Raises
    ------
    ValueError
        If there is nothing to score, or the goal is unknown.
    """
    if not len(guess.where):
        raise ValueError("the attack made no guess: there is nothing to score")
    if goal == "images":
        return _images(guess, truth, floors, classifier, seed)
    if goal == "order":
        return _order(guess, truth, seed)
    if goal == "owners":
        return _owners(guess, truth, seed)
    if goal == "labels":
        return _labels(guess, truth, seed)
    if goal == "membership":
        return _membership(guess, truth, seed)
    raise ValueError(f"goal is {goal!r}; it must be one of {', '.join(get_args(Goal))}")


@dataclass(frozen=True)
class _ImageMetric:
    """A score of reconstructions: its column in the rows, its name, and how it is computed.

    Parameters
    ----------
    of
        Computes it for reconstructions (n, C, H, W): (n,), or None where it cannot be had.
    options
        The properties that `mean_measure` needs.
    """

    column: str
    name: str
    of: Callable[[Tensor], Tensor | None]
    options: Mapping[str, bool] = field(default_factory=dict)


def _image_metrics(
    images: Tensor, labels: Tensor, others: Tensor, classifier: Classifier | None
) -> list[_ImageMetric]:
    """Return the metrics for victims' images (n, C, H, W) and labels, the main one first."""
    lower, share = {"lower_is_stronger": True}, {"share": True}
    metrics = [
        _ImageMetric("mse", "MSE", lambda g: squared_errors(g, images), {**lower, "main": True}),
        _ImageMetric("psnr", "PSNR", lambda g: peak_ratios(squared_errors(g, images))),
        _ImageMetric("ssim", "SSIM", lambda g: structures(g, images)),
        _ImageMetric("retrieved", "retrieval", lambda g: retrieved(g, images, others), share),
        _ImageMetric("lpips", "LPIPS", lambda g: perceptual_distances(g, images), lower),
    ]
    if classifier is not None and labels.dim() == 1:  # else no image has the one class it could see
        agree = partial(agreements, labels=labels, classifier=classifier)
        metrics.append(_ImageMetric("class_agrees", "class", agree, share))
    return metrics


def _images(
    guess: Guess, truth: Truth, floors: Floors, classifier: Classifier | None, seed: int
) -> AttackScores:
    pairs = pairs_of(guess, truth)
    if not pairs:
        raise ValueError("no guess is at a row whose images are known: there is nothing to score")
    guesses = guess.values.cpu()[[number for number, _ in pairs]].float()
    victims = torch.tensor([victim for _, victim in pairs])
    images, labels = truth.pictures.images[victims], truth.pictures.labels[victims]
    public = floors.public.images
    blind = floors.blind(guess, pairs, images, seed)
    blind_errors = {name: squared_errors(values, images) for name, values in blind.items()}
    floor = blind[min(blind, key=lambda name: float(blind_errors[name].mean()))]
    # An image may be released often, and one guess may be at several images.
    within = [victims.tolist(), [guess.where[number] for number, _ in pairs]]
    scores: dict[str, Tensor] = {}
    measures = []
    for metric in _image_metrics(images, labels, public[: GALLERY - 1], classifier):
        values, reached = metric.of(guesses), metric.of(floor)
        if values is None or reached is None:
            continue
        scores[metric.column] = values
        least = float(reached.double().mean())
        measures.append(
            mean_measure(
                metric.name, values.numpy(), least, within=within, seed=seed, **metric.options
            )
        )
    columns = {  # in the order in which files of samples have them
        **{name: scores[name] for name in ("mse", "psnr", "retrieved")},
        "nearest_public_mse": _nearest_errors(images, public),
        **blind_errors,
        **scores,
    }
    return AttackScores(_rows(guess, truth, pairs, columns), measures)


def _nearest_errors(images: Tensor, public: Tensor) -> Tensor:
    """Return the mean squared error between each image and the public one nearest to it."""
    parts = [
        torch.cdist(part.flatten(1), public.flatten(1)).square().amin(1) / part[0].numel()
        for part in torch.split(images, 256)
    ]
    return torch.cat(parts)


def _rows(
    guess: Guess,
    truth: Truth,
    pairs: Sequence[tuple[int, int]],
    columns: dict[str, Tensor],
) -> list[Row]:
    values = {name: column.tolist() for name, column in columns.items()}
    return [
        {
            "victim": victim,
            "guess": number,
            "release": guess.where[number][0],
            "row": guess.where[number][1],
            "trained": bool(truth.trained[victim]),
            "confidence": float(guess.confidence[number]),
            **{name: entries[i] for name, entries in values.items()},
        }
        for i, (number, victim) in enumerate(pairs)
    ]


def _order(guess: Guess, truth: Truth, seed: int) -> AttackScores:
    """Score positions: a patch is right if it is in its place in its own image."""
    pairs, right = [], []
    for number, victim in first_victims(guess, truth):
        release, row = guess.where[number]
        share = in_place(guess.values[number].cpu(), truth.origins[release], row)
        if share is not None:
            pairs.append((number, victim))
            right.append(share)
    if not pairs:
        raise ValueError("no release has a patch: there is no order to find")
    values = torch.tensor(right, dtype=torch.float64)
    measure = mean_measure(
        "patches in place", values.numpy(), 1 / guess.values.shape[1], main=True, share=True,
        within=[_releases(guess, pairs)], seed=seed,
    )  # fmt: skip
    return AttackScores(_rows(guess, truth, pairs, {"in_place": values}), [measure])


def _owners(guess: Guess, truth: Truth, seed: int) -> AttackScores:
    """Score owners up to their numbering, against the largest owner's share and blind guesses."""
    pairs, guesses, owners = [], [], []
    for number, victim in first_victims(guess, truth):
        release, row = guess.where[number]
        release_owners = truth.origins[release].owners
        if release_owners is None or not bool((release_owners[row] >= 0).any()):
            continue
        pairs.append((number, victim))
        guesses.append(guess.values[number].cpu().numpy())
        owners.append(release_owners[row].numpy())
    if not pairs:
        raise ValueError("no release is a mixture of patches: there are no owners to find")
    releases = _releases(guess, pairs)
    right = [
        attributed(guessed, row_owners) for guessed, row_owners in zip(guesses, owners, strict=True)
    ]
    floor = max(
        float(np.mean([largest_share(row_owners) for row_owners in owners])),
        attributed_blindly(guesses, owners, releases, seed),
    )
    values = torch.tensor(right, dtype=torch.float64)
    measure = mean_measure(
        "patches attributed", values.numpy(), floor, main=True, share=True, within=[releases],
        seed=seed,
    )  # fmt: skip
    return AttackScores(_rows(guess, truth, pairs, {"attributed": values}), [measure])


def _releases(guess: Guess, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return the release of each pair: its rows share a mask, and often a guess."""
    return [guess.where[number][0] for number, _ in pairs]


def _labels(guess: Guess, truth: Truth, seed: int) -> AttackScores:
    """Score classes by accuracy, and scores for two classes by max(AUC, 1 - AUC).

    The latter is taken of all rows as one curve, and of each release, a batch, by itself.
    """
    pairs = first_victims(guess, truth)
    numbers = [number for number, _ in pairs]
    victims = [victim for _, victim in pairs]
    labels = truth.pictures.labels[victims]
    values = guess.values.cpu()[numbers]
    if values.is_floating_point() and values.ndim == 1:
        positive = (labels == labels.max()).numpy()
        scores = values.double().numpy()
        measures = curve_measures(scores, positive, groups=victims, seed=seed, either_way=True)
        by_batch = batch_curve_measure(scores, positive, _releases(guess, pairs), seed=seed)
        measures += [] if by_batch is None else [by_batch]
        return AttackScores(
            _rows(guess, truth, pairs, {"score": values, "label": labels}), measures
        )
    guessed = values.argmax(1) if values.ndim == 2 else values
    right = guessed == labels
    most = float(labels.bincount().max()) / len(labels)
    measure = mean_measure(
        "labels read", right.numpy(), most, main=True, share=True, within=[victims], seed=seed
    )
    columns = {"read": guessed, "label": labels, "right": right}
    return AttackScores(_rows(guess, truth, pairs, columns), [measure])


def _membership(guess: Guess, truth: Truth, seed: int) -> AttackScores:
    pairs = first_victims(guess, truth)
    scores = guess.values.cpu().double()[[number for number, _ in pairs]]
    victims = [victim for _, victim in pairs]
    member = truth.trained[victims]
    measures = curve_measures(scores.numpy(), member.numpy(), groups=victims, seed=seed)
    return AttackScores(_rows(guess, truth, pairs, {"score": scores}), measures)
