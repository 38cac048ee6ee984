"""Scores of evaluating texts at the client; only means leave the client."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flwr_splitmix.data.errors import ExamplesError
from flwr_splitmix.data.masked_batch import MaskedBatch, holds_ids
from flwr_splitmix.data.texts.text_set import IGNORED, WHOSE_LABELS, labels_tokens
from flwr_splitmix.extras import needed_for
from flwr_splitmix.labels import wrong_labels
from flwr_splitmix.words import with_article

_OTHER_LABELS = (
    "; others, such as several labels each or labels of patches, need a loss of your own, in a "
    "subclass of UShapeClient or of its hiding, and scores of your own (scores=) if they are "
    "evaluated"
)


PERPLEXITY = "perplexity"
"""Name of the score of tokens that follows from their loss."""


def perplexity_of(loss: float) -> float:
    """Return the perplexity of a mean loss over tokens; one that a float can hold."""
    return math.exp(min(loss, 700.0))


def check_labels(batch: MaskedBatch) -> None:
    """Refuse labels that `text_loss` and `TextScores` would score at another place than theirs.

    Raises
    ------
    ExamplesError
        If labels are floating, if there is more than one label for each input that is not text, or
        if the labels of tokens are not the tokens.
    """
    if batch.labels.is_floating_point():
        raise ExamplesError(
            f"labels are {batch.labels.dtype}; expected classes, int64 (batch,){_OTHER_LABELS}"
        )
    if batch.labels.dim() == 1:
        return
    if not holds_ids(batch.inputs):
        wrong = wrong_labels(batch.labels, 1, multi_label=False, remedy="tail")
        raise ExamplesError(f"labels {wrong}{_OTHER_LABELS}")
    if batch.labels.shape != batch.inputs.shape or not labels_tokens(batch.inputs, batch.labels):
        raise ExamplesError(f"labels are not the tokens: {WHOSE_LABELS}{_OTHER_LABELS}")


def checked_tail(logits: object) -> Tensor:
    """Return what a tail returned; raises ExamplesError if it is not a tensor."""
    if not isinstance(logits, Tensor):
        raise ExamplesError(
            "a tail must return one tensor (batch, classes) or (batch, tokens, vocabulary), this "
            f"one returns {with_article(type(logits).__name__)}; return the tensor in it"
        )
    return logits


def scored(labels: Tensor) -> Tensor:
    """Return the labels that are predicted, int64 (n,).

    Parameters
    ----------
    labels
        int64 (b,), classes; or (b, T), tokens, of which a text's first is never predicted.
    """
    targets = labels[:, 1:] if labels.dim() == 2 else labels
    return targets[targets != IGNORED]


def text_loss(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of texts.

    Parameters
    ----------
    logits
        (b, L) with `labels` int64 (b,); or (b, T, V) with `labels` int64 (b, T), where each label
        is predicted at the position before it (MixGuard, eq. 26-27).
    reduction
        "mean" or "sum", over texts or over tokens; labels equal to `IGNORED` do not count.

    Returns
    -------
    Scalar, computed in float32; the mean over no labels is 0.

    Raises
    ------
    ExamplesError
        If logits are not a tensor, a label is not a class, or the shapes of both do not match.
    """
    checked_tail(logits)
    if logits.dim() != labels.dim() + 1 or len(logits) != len(labels):
        raise ExamplesError(
            f"the tail returns {tuple(logits.shape)}, but labels are {tuple(labels.shape)}: a "
            "class for each text goes with (texts, classes), tokens with (texts, tokens, words)"
        )
    scored_labels, tokens = scored(labels), labels.dim() == 2
    if tokens:
        logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    classes = logits.shape[-1]
    rules: dict[str, Any] = {"multi_label": False, "remedy": "none" if tokens else "tail"}
    if wrong := wrong_labels(scored_labels, classes, **rules):
        more = "; the tail needs a logit for each token of the vocabulary" if tokens else ""
        public = wrong_labels(scored_labels, classes, **rules, shown=False)
        raise ExamplesError(f"labels {wrong}{more}", f"labels {public}{more}")
    if reduction == "mean" and not len(scored_labels):  # the mean over no tokens would be NaN
        return logits.float().sum() * 0.0
    return F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction=reduction)


class TextScores:
    """Loss and accuracy of classes, or of next tokens with their perplexity.

    A subclass that generates text returns from `add` the batch to send next.
    """

    def __init__(self) -> None:
        self.examples = 0
        self._loss = 0.0
        self._right = 0
        self._scored = 0
        self._tokens = False

    def begin(self, batch: MaskedBatch) -> MaskedBatch:
        """Return what to send first of a test batch."""
        return batch

    def add(self, logits: Tensor, batch: MaskedBatch) -> MaskedBatch | None:
        """Score a batch's logits; return the batch to send next, None when done.

        Raises
        ------
        ExamplesError
            As `check_labels` and `text_loss`.
        """
        check_labels(batch)
        labels = batch.labels
        self._loss += float(text_loss(logits, labels, "sum"))
        if labels.dim() == 2:
            logits, labels = logits[:, :-1], labels[:, 1:]
            self._tokens = True
        counted = labels != IGNORED
        self._right += int(((logits.argmax(-1) == labels) & counted).sum())
        self._scored += int(counted.sum())
        self.examples += len(batch.inputs)
        return None

    def result(self) -> dict[str, float]:
        """Return the mean "loss" and "accuracy", and for tokens the "perplexity".

        Raises
        ------
        ExamplesError
            If no text has a label: a perplexity of 1 would be the best there is.
        """
        if not self._scored:
            raise ExamplesError(
                f"none of the {self.examples} test texts has a label to score: {IGNORED} marks "
                "those without, and a text's first token is never predicted"
            )
        scores = {"loss": self._loss / self._scored, "accuracy": self._right / self._scored}
        if self._tokens:
            scores[PERPLEXITY] = perplexity_of(scores["loss"])
        return scores


class ClassScores(TextScores):
    """Adds the Matthews correlation coefficient of predicted and right classes."""

    def __init__(self) -> None:
        super().__init__()
        self._predictions: list[Tensor] = []
        self._labels: list[Tensor] = []

    def add(self, logits: Tensor, batch: MaskedBatch) -> MaskedBatch | None:
        """Score a batch of classes."""
        self._predictions.append(logits.argmax(-1).cpu())
        self._labels.append(batch.labels.cpu())
        return super().add(logits, batch)

    def result(self) -> dict[str, float]:
        """Return "loss", "accuracy", and "matthews" unless all examples have one class."""
        labels = torch.cat(self._labels).numpy()
        if len(set(labels)) < 2:  # it would be 0 / 0
            return super().result()
        with needed_for("Matthews' correlation", "language"):
            from sklearn.metrics import matthews_corrcoef

        matthews = matthews_corrcoef(labels, torch.cat(self._predictions).numpy())
        return {**super().result(), "matthews": float(matthews)}


Scores = Callable[[], TextScores]
"""Factory of the scores of one evaluation."""


def check_scores(scores: object) -> None:
    """Refuse what makes no scores; it is called once.

    Raises
    ------
    TypeError
        If it cannot be called, or what it makes lacks a member of `TextScores`.
    """
    if not callable(scores):
        kind = type(scores).__name__
        expected = "expected a class that makes scores, anew for each evaluation"
        if hasattr(scores, "result"):
            raise TypeError(f"scores is {with_article(kind)}; {expected}: scores={kind}")
        raise TypeError(f"scores is {scores!r:.60}; {expected}, with the members of TextScores")
    instance = scores()
    lacking = [name for name in ("begin", "add", "result") if not hasattr(instance, name)]
    if type(getattr(instance, "examples", None)) is not int:
        lacking.insert(0, "examples (a number, of those scored)")
    if lacking:
        raise TypeError(
            f"scores makes {with_article(type(instance).__name__)}, which lacks "
            f"{', '.join(lacking)}; flwr_splitmix.scoring.texts.TextScores has them all"
        )
