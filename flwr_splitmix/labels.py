"""Losses and scores of examples with one class each, or with any number of labels each.

Labels are int64: classes (b,), or multi-label (b, L), 1 for each label that an example has and
otherwise 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TargetLoss = Callable[[Tensor, Tensor], Tensor]
"""Loss of one's own: logits (b, L) and targets (b, L), which may be mixtures, to losses (b,)."""

Remedy = Literal["num_classes", "tail", "none"]
"""What sets the number of classes, and so mends wrong labels; "none": ids have no remedy."""


_EXPECTED_LOSS = (
    "expected nn.CrossEntropyLoss(reduction='none'), nn.MultiLabelSoftMarginLoss("
    "reduction='none'), or a function of logits and targets (b, L), where a target is a row of "
    "shares of the classes, not the number of one"
)


@dataclass(frozen=True)
class Tally:
    """Sums over scored examples, from which their scores follow.

    Parameters
    ----------
    examples
        Number of examples.
    loss
        Sum of the examples' losses; a multi-label example's loss is the mean over its labels.
    right
        Number of right predictions: one for each example, or one for each of its labels.
    predictions
        Number of predictions.
    confusion
        For multi-label examples, the numbers of true positives, true negatives, false positives
        and false negatives, over all labels; None for classes.
    """

    examples: int = 0
    loss: float = 0.0
    right: int = 0
    predictions: int = 0
    confusion: tuple[int, int, int, int] | None = None

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.examples + other.examples,
            self.loss + other.loss,
            self.right + other.right,
            self.predictions + other.predictions,
            _sum(self.confusion, other.confusion),
        )

    @property
    def mean_loss(self) -> float:
        """Mean loss of an example; NaN without examples."""
        return self.loss / self.examples if self.examples else math.nan

    @property
    def accuracy(self) -> float:
        """Fraction of right predictions; for multi-label examples, the mean over the labels."""
        return self.right / self.predictions if self.predictions else math.nan

    @property
    def scores(self) -> dict[str, float]:
        """Further scores: "matthews" for multi-label examples, nothing for classes.

        Matthews' correlation coefficient is over all labels of all examples together; it is 0 if
        all labels, or all predictions, are equal.

        Source: Patch Shuffling, eq. 10.
        """
        if self.confusion is None:
            return {}
        yes, no, false_yes, false_no = self.confusion
        product = (yes + false_yes) * (yes + false_no) * (no + false_yes) * (no + false_no)
        above = yes * no - false_yes * false_no
        return {"matthews": above / math.sqrt(product) if product else 0.0}


def _sum(
    first: tuple[int, int, int, int] | None, second: tuple[int, int, int, int] | None
) -> tuple[int, int, int, int] | None:
    if first is None or second is None:
        return first or second
    a, b, c, d = (x + y for x, y in zip(first, second, strict=True))
    return a, b, c, d


def loss_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of targets and losses of data of `dtype`: float32, or float64 as it is.

    Rows of targets of 16 bits miss their sum, and sums of many losses stop growing.
    """
    return torch.promote_types(dtype, torch.float32)


def target_rows(labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """Return labels as targets (b, L): classes as one-hot rows, multi-label ones as they are."""
    rows = labels if labels.dim() == 2 else F.one_hot(labels, num_classes)
    return rows.to(dtype)


def known_rows(labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """Return targets as `target_rows`, where a class outside 0..L-1 is a row of zeros.

    So is what is neither 0 nor 1 of multi-label examples. Of a mixture's targets the server then
    learns no more than it would with more classes; an error would tell it of one client's labels.
    """
    most = 1 if labels.dim() == 2 else num_classes - 1
    is_known = (labels >= 0) & (labels <= most)
    rows = target_rows(labels.where(is_known, 0), num_classes, dtype)
    return rows if labels.dim() == 2 else rows * is_known[:, None]


def target_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    multi_label: bool,
    loss: TargetLoss | None = None,
    reduction: Literal["mean", "none"] = "mean",
) -> Tensor:
    """Return the loss of logits (b, L) for targets (b, L), which may be mixtures.

    Both are converted to the `loss_dtype` of the targets.

    Parameters
    ----------
    loss
        By default the cross-entropy; for multi-label targets the binary cross-entropy of each
        label, and the mean over labels.
    reduction
        "mean" over the examples, or "none": a loss for each, (b,).

    Raises
    ------
    ValueError
        If `loss` fails, or does not return a loss for each example.
    """
    logits, targets = (tensor.to(loss_dtype(targets.dtype)) for tensor in (logits, targets))
    if loss is not None:
        losses = _computed(loss, logits, targets)
        if not isinstance(losses, Tensor) or losses.shape != logits.shape[:1]:
            output = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(
                f"loss returns {output}; expected losses ({len(logits)},), one for each example: "
                "set reduction='none', and take the mean over classes of a loss that has one for "
                "each of them"
            )
        return losses.mean() if reduction == "mean" else losses
    if not multi_label:
        return F.cross_entropy(logits, targets, reduction=reduction)
    losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)
    return losses.mean() if reduction == "mean" else losses


def _computed(loss: TargetLoss, logits: Tensor, targets: Tensor) -> Tensor:
    try:
        return loss(logits, targets)
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        message = " ".join(str(error).split())
        if "out of memory" in message:
            raise
        raise ValueError(
            f"loss {name_of(loss)} cannot be computed from logits {tuple(logits.shape)} and "
            f"targets {tuple(targets.shape)}, both {str(logits.dtype).removeprefix('torch.')} "
            f"({message}); {_EXPECTED_LOSS}"
        ) from error


def name_of(loss: object) -> str:
    """Return the name of a function or a class, as messages have it."""
    return str(getattr(loss, "__name__", type(loss).__name__))


def loss_on(loss: TargetLoss | None, device: torch.device | str) -> TargetLoss | None:
    """Return a loss that computes on a device: a module is moved there, a function is as it is.

    Raises
    ------
    TypeError
        If it cannot be a loss.
    """
    if isinstance(loss, type) or not (loss is None or callable(loss)):
        description = f"the class {loss.__name__}" if isinstance(loss, type) else repr(loss)
        raise TypeError(f"loss is {description}; {_EXPECTED_LOSS}")
    return loss.to(device) if isinstance(loss, nn.Module) else loss


@torch.inference_mode()
def tally(logits: Tensor, labels: Tensor) -> Tally:
    """Score logits (b, L); a label is predicted if its logit is above 0.

    A prediction from a NaN is wrong, whatever the label.
    """
    logits = logits.float()
    unknown = logits.isnan()
    if labels.dim() == 1:
        loss = float(F.cross_entropy(logits, labels, reduction="sum"))
        predicted = logits.argmax(1).masked_fill(unknown.any(1), -1)
        return Tally(len(labels), loss, int((predicted == labels).sum()), len(labels))
    loss = float(target_loss(logits, labels.float(), multi_label=True)) * len(labels)
    right = labels > 0
    predicted = torch.where(unknown, ~right, logits > 0)
    yes, no = int((predicted & right).sum()), int((~predicted & ~right).sum())
    false_yes, false_no = int((predicted & ~right).sum()), int((~predicted & right).sum())
    return Tally(len(labels), loss, yes + no, labels.numel(), (yes, no, false_yes, false_no))


_LEFT_OUT = (
    " (1 where an example has the label, else 0: leave out examples of which one is missing, or "
    "take the U shape with a loss of your own)"
)
"""What to do with other numbers in rows of several labels."""


def wrong_labels(
    labels: Tensor,
    num_classes: int,
    *,
    multi_label: bool,
    batch: int | None = None,
    remedy: Remedy = "num_classes",
    shown: bool = True,
) -> str | None:
    """Return the fault of labels, as a clause with the remedy; None if they have none.

    Parameters
    ----------
    labels
        int64 (b,) in 0..L-1 is right, or with `multi_label` int64 (b, L) of 0 and 1.
    batch
        Expected number b of examples; None for any.
    remedy
        "num_classes" of the server; the "tail" of a client in the U shape, which returns L logits
        for labels that stay with it; or "none" for ids, of examples or of tokens, 0..L-1.
    shown
        Whether the clause may show values of labels; otherwise a server may read it.
    """
    wrong = misshapen(labels, num_classes, multi_label=multi_label, batch=batch, remedy=remedy)
    if wrong is not None:
        return wrong
    most = 1 if multi_label else num_classes - 1
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) <= most:
        if not shown:
            more = "give the tail more logits" if remedy == "tail" else "pass a larger num_classes"
            advice = _LEFT_OUT if multi_label else f" (classes start at 0; for more of them {more})"
            return f"are not all in 0..{most}" + ("" if remedy == "none" else advice)
        least, largest = int(labels.min()), int(labels.max())
        advice = _LEFT_OUT if multi_label else _renumbered(least, largest, most, remedy)
        return f"lie in {least}..{largest}, expected 0..{most}" + (
            "" if remedy == "none" else advice
        )
    return None


def misshapen(
    labels: Tensor,
    num_classes: int,
    *,
    multi_label: bool,
    batch: int | None = None,
    remedy: Remedy = "num_classes",
) -> str | None:
    """Return the fault of the shape or dtype of labels, as `wrong_labels` does.

    Nothing in the clause depends on values if the remedy is at the tail.
    """
    if batch is None:
        batch = len(labels) if labels.dim() else 1
    shape = (batch, num_classes) if multi_label else (batch,)
    if labels.dtype == torch.int64 and tuple(labels.shape) == shape:
        return None
    return (
        f"have shape {tuple(labels.shape)} of {labels.dtype}, expected {shape} of torch.int64"
        + ("" if remedy == "none" else _reshaped(labels, remedy, multi_label=multi_label))
    )


def _renumbered(least: int, largest: int, most: int, remedy: Remedy) -> str:
    """Return the probable cause and the remedy for classes in `least` to `largest`."""
    if least < 0:
        return " (classes start at 0: leave out examples without one)"
    number = largest + 1
    more = f"give the tail {number} logits" if remedy == "tail" else f"pass num_classes={number}"
    # These labels are part of a batch: a whole set may begin at 1, or not.
    if least > 0 and largest == most + 1:
        return f" (classes start at 0, not at 1; for more of them {more})"
    return f" (classes start at 0; for more of them {more} or more)"


def _reshaped(labels: Tensor, remedy: Remedy, *, multi_label: bool) -> str:
    """Return the remedy for labels of another shape than the expected one."""
    if multi_label:
        return " (of one class each: leave out multi_label)" if labels.dim() == 1 else ""
    if labels.dim() == 2 and labels.shape[1] == 1:
        return " (take .squeeze(1))"
    if remedy == "tail":
        return " (one-hot: take .argmax(1))" if labels.dim() == 2 else ""
    one_hot = labels.dim() == 2 and bool(((labels == 0) | (labels == 1)).all())
    return " (one-hot: take .argmax(1); several labels each: multi_label=True)" if one_hot else ""
