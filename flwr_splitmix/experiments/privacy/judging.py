"""The judging of a guess: its error against the truth, by victim, beside the floors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch
from torch import Tensor

from flwr_splitmix.attacks.attacked import Case
from flwr_splitmix.attacks.base import Goal, Guess
from flwr_splitmix.attacks.images.gradient_leaks import leak_auc
from flwr_splitmix.attacks.images.membership_scores import tpr_at
from flwr_splitmix.attacks.pictures import Pictures

_RESAMPLES = 1000
_SHUFFLES = 20


@dataclass(frozen=True)
class Metric:
    """What an attack reached by one metric.

    Parameters
    ----------
    name
        "MSE", "order found", ...
    value, low, high
        Mean over victims, and the interval of 95 % of the mean.
    floor
        What is reached without the victims' releases.
    lower_is_stronger
        Whether the attack is the stronger, the lower it is.
    main
        Whether the gate goes by it.
    """

    name: str
    value: float
    low: float
    high: float
    floor: float
    lower_is_stronger: bool = False
    main: bool = False


@dataclass(frozen=True)
class Judgement:
    """The metrics of a guess, and a row of scores for each victim, by column."""

    metrics: list[Metric]
    samples: dict[str, np.ndarray]


def judge(goal: Goal, guess: Guess, case: Case, public: Pictures, *, seed: int) -> Judgement:
    """Judge a guess by its goal."""
    by_goal: dict[Goal, Callable[..., Judgement]] = {
        "images": _images,
        "order": _order,
        "owners": _owners,
        "labels": _labels,
        "membership": _membership,
    }
    return by_goal[goal](guess, case, public, seed)


def mean_interval(values: np.ndarray, seed: int) -> tuple[float, float, float]:
    """Return the mean of (n,) values and its bootstrap interval of 95 %."""
    mean = float(values.mean())
    if len(values) < 2 or np.ptp(values) == 0:
        return mean, mean, mean
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(1), [0.025, 0.975])
    return mean, float(low), float(high)


def _images(guess: Guess, case: Case, public: Pictures, seed: int) -> Judgement:
    from scipy.optimize import linear_sum_assignment

    errors, trained, victims = [], [], []
    for origin_row, numbers in _by_row(guess, case):
        truth = case.truth.pictures.images[origin_row]
        made = guess.values[numbers].cpu()
        square = (made[:, None] - truth[None]).square().flatten(2).mean(2)
        if len(numbers) >= len(truth):
            ours, theirs = linear_sum_assignment(square.numpy())
            best = torch.empty(len(truth))
            best[theirs] = square[ours, theirs]
        else:  # one picture of a mixture stands for all that is in it
            best = square.min(0).values
        errors.append(best)
        victims.append(origin_row)
        trained.append(case.truth.trained[origin_row])
    error = torch.cat(errors).double().numpy()
    who, seen = torch.cat(victims), torch.cat(trained).numpy()
    floors = picture_floors(case.truth.pictures.images[who], public)
    floor = min(float(each.mean()) for each in floors.values())
    kinds = {"": np.ones_like(seen), ", trained on": seen, ", held out": ~seen}
    metrics = []
    for kind, rows in kinds.items():
        if rows.any():
            own = min(float(each[rows].mean()) for each in floors.values())
            metrics.append(
                Metric(f"MSE{kind}", *mean_interval(error[rows], seed), own, True, not kind)
            )
    least = np.quantile(error, 0.05)
    metrics.append(
        Metric("MSE, the worst 5 %", float(least), float(least), float(least), floor, True)
    )
    decibel = -10 * np.log10(np.maximum(error, 1e-10))
    metrics.append(Metric("PSNR", *mean_interval(decibel, seed), float(-10 * np.log10(floor))))
    samples = {"victim": who.numpy(), "trained": seen, "mse": error}
    return Judgement(metrics, samples | {f"mse of {k}": v for k, v in floors.items()})


def picture_floors(victims: Tensor, public: Pictures) -> dict[str, np.ndarray]:
    """Return the errors (n,) of the mean public image, for each victim."""
    mean = public.images.mean(0)
    return {"mean image": (victims - mean).square().flatten(1).mean(1).double().numpy()}


def _order(guess: Guess, case: Case, public: Pictures, seed: int) -> Judgement:
    rows, floors = [], []
    rng = np.random.default_rng(seed)
    for number, (release, row) in enumerate(guess.where):
        origin = case.truth.origins[release]
        if origin.order is not None:
            true = origin.order[row] % guess.values.shape[1]
            rows.append(float((guess.values[number].cpu() == true).double().mean()))
            other = torch.from_numpy(rng.permutation(len(true)))
            floors.append(float((other == true).double().mean()))
    return _fractions("order found", np.array(rows), float(np.mean(floors)), seed)


def _owners(guess: Guess, case: Case, public: Pictures, seed: int) -> Judgement:
    rows, truths = [], []
    for number, (release, row) in enumerate(guess.where):
        owners = case.truth.origins[release].owners
        if owners is not None:
            rows.append(guess.values[number].cpu())
            truths.append(owners[row])
    found = np.array([_agreement(g, t) for g, t in zip(rows, truths, strict=True)])
    shifted = [*truths[1:], *truths[:1]] if len(truths) > 1 else truths
    rng = np.random.default_rng(seed)
    chance = [
        _agreement(g[torch.from_numpy(rng.permutation(len(g)))], t)
        for g, t in zip(rows, shifted, strict=True)
    ]
    return _fractions("owners found", found, float(np.mean(chance)), seed)


def _agreement(guessed: Tensor, true: Tensor) -> float:
    """Return the fraction of patches given to the right owner, under the best numbering."""
    known = true >= 0
    ours, theirs = guessed[known].unique().tolist(), true[known].unique().tolist()
    if len(ours) < len(theirs):
        ours = [*ours, *(-1 - i for i in range(len(theirs) - len(ours)))]
    best = 0.0
    for names in permutations(ours, len(theirs)):
        right = sum(
            float(((guessed == name) & (true == owner))[known].sum())
            for name, owner in zip(names, theirs, strict=True)
        )
        best = max(best, right)
    return best / max(int(known.sum()), 1)


def _labels(guess: Guess, case: Case, public: Pictures, seed: int) -> Judgement:
    batches: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, (release, row) in enumerate(guess.where):
        source = int(case.truth.origins[release].sources[row, 0])
        if source >= 0:
            batches[release].append((number, int(case.truth.pictures.labels[source])))
    rng = np.random.default_rng(seed)
    areas, chances = [], []
    for members in batches.values():
        numbers, labels = (torch.tensor(part) for part in zip(*members, strict=True))
        areas += _areas(guess.values[numbers], labels)
        for _ in range(_SHUFFLES):
            mixed = labels[torch.from_numpy(rng.permutation(len(labels)))]
            chances += _areas(guess.values[numbers], mixed)
    metrics = [
        Metric("AUC", *mean_interval(np.array(areas), seed), float(np.mean(chances)), main=True)
    ]
    samples = {"auc of a batch and class": np.array(areas)}
    if guess.values.ndim == 2 or not guess.values.is_floating_point():
        made = guess.values.argmax(1) if guess.values.ndim == 2 else guess.values
        pairs = [pair for members in batches.values() for pair in members]
        numbers, labels = (torch.tensor(part) for part in zip(*pairs, strict=True))
        right = (made[numbers] == labels).double().numpy()
        most = float(labels.bincount().max()) / len(labels)
        metrics.append(Metric("labels found", *mean_interval(right, seed), most))
    return Judgement(metrics, samples)


def _areas(values: Tensor, labels: Tensor) -> list[float]:
    """Return max(AUC, 1 - AUC) of each class of a batch against the others."""
    made = []
    for label in labels.unique().tolist():
        scores = (
            values[:, label]
            if values.ndim == 2
            else (values if values.is_floating_point() else (values == label).double())
        )
        area = leak_auc(scores, labels == label)
        if area is not None:
            made.append(area)
    return made


def _membership(guess: Guess, case: Case, public: Pictures, seed: int) -> Judgement:
    from sklearn.metrics import roc_auc_score

    members = torch.tensor(
        [
            bool(case.truth.trained[case.truth.origins[release].sources[row]].all())
            for release, row in guess.where
        ]
    )
    truth, scores = members.numpy(), guess.values.double().cpu()
    area = float(roc_auc_score(truth, scores.numpy()))
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(_RESAMPLES // 2):
        rows = rng.integers(len(truth), size=len(truth))
        if 0 < truth[rows].sum() < len(rows):
            drawn.append(roc_auc_score(truth[rows], scores.numpy()[rows]))
    low, high = np.quantile(drawn, [0.025, 0.975])
    metrics = [Metric("AUC", area, float(low), float(high), 0.5, main=True)]
    for name, rate in (("1 %", 0.01), ("0.1 %", 0.001)):
        found = tpr_at(scores, members, rate)
        metrics.append(Metric(f"TPR at {name} FPR", found, found, found, rate))
    return Judgement(metrics, {"member": truth, "score": scores.numpy()})


def _fractions(name: str, values: np.ndarray, floor: float, seed: int) -> Judgement:
    metric = Metric(name, *mean_interval(values, seed), floor, main=True)
    return Judgement([metric], {name: values})


def _by_row(guess: Guess, case: Case) -> Iterator[tuple[Tensor, list[int]]]:
    """Return for each row that was guessed its victims and the numbers of its guesses."""
    rows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, at in enumerate(guess.where):
        rows[at].append(number)
    for (release, row), numbers in rows.items():
        sources = case.truth.origins[release].sources[row]
        yield sources[sources >= 0], numbers
