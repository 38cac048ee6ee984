"""Tokenised texts with labels, as a data set's examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from flwr_splitmix.data.examples import Example
from flwr_splitmix.data.masked_batch import NOTHING
from flwr_splitmix.words import are, counted

IGNORED = -100
"""Label of a token without loss."""

WHOSE_LABELS = (
    "each token is predicted at the position before it, so its label is the token itself, or "
    f"{IGNORED} for no loss; a class for each token (token classification) is not offered"
)
"""End of the message about other labels of tokens."""


def labels_tokens(ids: Tensor, labels: Tensor) -> bool:
    """Return whether each label is the token id at its place, or `IGNORED`; shapes are equal."""
    return bool(((labels == ids) | (labels == IGNORED)).all())


class TextSet(Dataset[Example]):
    """Tokenised texts in memory.

    Parameters
    ----------
    texts
        Token ids of each text, integers (t,), >= 0; t may differ.
    labels
        The class of each text, or its tokens, integers (t,), with -100 where there is no loss: they
        are for predicting the next word, not for classes of tokens.
    max_length
        Maximum number of tokens of a text; None for no limit.
    pad_to
        Length to which batches are padded, so that they do not reveal the longest text's; None
        pads to the longest text of the batch.

    Raises
    ------
    TypeError
        If texts or labels are not a list.
    ValueError
        If a text is empty or too long, a token id or a label is not an integer, a token id is
        negative, labels are of both kinds, the numbers of texts and labels, or of a text's tokens
        and labels, differ, or a token's label is neither the token nor -100.
    """

    def __init__(
        self,
        texts: Sequence[Tensor] | Sequence[Sequence[int]],
        labels: Sequence[int] | Sequence[Tensor] | Sequence[Sequence[int]],
        *,
        max_length: int | None = None,
        pad_to: int | None = None,
    ) -> None:
        for name, entries in {"texts": texts, "labels": labels}.items():
            if not hasattr(entries, "__len__"):
                raise TypeError(
                    f"{name} is {entries!r:.40}; expected a list with one entry for each text "
                    "(texts to predict the words of are their own labels: labels=texts)"
                )
        if len(texts) != len(labels):
            raise ValueError(
                f"there {are(len(texts))} {counted(len(texts), 'text')} and "
                f"{counted(len(labels), 'label')}"
            )
        self.texts = [_integers(f"text {number}", text) for number, text in enumerate(texts)]
        self.labels = [_integers(f"label {number}", label) for number, label in enumerate(labels)]
        self.pad_to = pad_to
        limit = min((n for n in (max_length, pad_to) if n is not None), default=None)
        for number, text in enumerate(self.texts):
            _check_ids(number, text, limit)
        _check_labels(self.texts, self.labels)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Example:
        return self.texts[index], self.labels[index]

    def batch(self, indices: np.ndarray) -> Example:
        """Return (ids (b, T), labels (b,) or (b, T)), int64; ids are -1 beyond a text's end."""
        ids = _padded([self.texts[i] for i in indices], NOTHING, self.pad_to)
        labels = [self.labels[i] for i in indices]
        if labels and labels[0].dim():
            return ids, _padded(labels, IGNORED, self.pad_to)
        return ids, torch.stack(labels)


def _padded(rows: Sequence[Tensor], value: int, length: int | None) -> Tensor:
    padded = torch.full((len(rows), length or max(map(len, rows))), value, dtype=torch.int64)
    for row, text in zip(padded, rows, strict=True):
        row[: len(text)] = text
    return padded


def _integers(name: str, values: object) -> Tensor:
    """Return integers as int64."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} is {type(values).__name__}; expected integers") from error
    if tensor.numel() and (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"{name} is {tensor.dtype}; expected integers")
    return tensor.to(torch.int64)


def _check_ids(number: int, text: Tensor, limit: int | None) -> None:
    if text.dim() != 1:
        raise ValueError(f"text {number} has shape {tuple(text.shape)}; expected (tokens,)")
    if not 0 < len(text) <= (limit or len(text)):
        allowed = "at least 1" if limit is None else f"1..{limit}"
        raise ValueError(f"text {number} has {counted(len(text), 'token')}; expected {allowed}")
    if int(text.min()) < 0:
        raise ValueError(
            f"text {number} has the token id {int(text.min())}; ids are at least 0, and batches "
            "are padded by this class"
        )


def _check_labels(texts: Sequence[Tensor], labels: Sequence[Tensor]) -> None:
    for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if label.dim() != labels[0].dim():
            raise ValueError(
                f"text {number} has {_kind(label)}, but text 0 has {_kind(labels[0])}; a set has "
                "labels of one kind"
            )
        if label.dim() and label.shape != text.shape:
            raise ValueError(
                f"text {number} has {counted(len(text), 'token')} and "
                f"{counted(len(label), 'label')}"
            )
        if label.dim() and not labels_tokens(text, label):
            raise ValueError(f"text {number} has labels of other tokens: {WHOSE_LABELS}")


def _kind(label: Tensor) -> str:
    return "a label for each token" if label.dim() else "one label"
