"""Rows and public texts as sets of tokens, for training, scoring and mixing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr_splitmix.data.texts.rows import TextRows, TextTask
from flwr_splitmix.data.texts.text_set import TextSet
from flwr_splitmix.data.texts.tokens import (
    LongTexts,
    OnLong,
    classification_tokens,
    generation_tokens,
    plain_tokens,
)


def token_set(
    rows: TextRows,
    tokenizer: Any,
    task: TextTask,
    *,
    max_length: int,
    long_texts: LongTexts = "refuse",
    on_long: OnLong | None = None,
    pad_to: int | None = None,
) -> TextSet:
    """Convert rows to tokens and labels.

    Parameters
    ----------
    rows
        Labelled sentences, or prompts with their answers, according to `task`.
    max_length, long_texts, on_long
        As for `plain_tokens`.
    pad_to
        As for `TextSet`.

    Raises
    ------
    DataError
        Raised by `classification_tokens` and `generation_tokens`.
    """
    make = classification_tokens if task == "classification" else generation_tokens
    ids, labels = make(
        rows, tokenizer, max_length=max_length, long_texts=long_texts, on_long=on_long
    )
    return TextSet(ids, labels, max_length=max_length, pad_to=pad_to)


def public_token_set(texts: Sequence[str], tokenizer: Any, *, max_length: int) -> TextSet:
    """Convert public texts to tokens; long texts are truncated, and the labels, all 0, are unused.

    Raises
    ------
    DataError
        Raised by `plain_tokens`.
    """
    ids, _ = plain_tokens(texts, tokenizer, max_length=max_length, long_texts="cut")
    return TextSet(ids, [0] * len(ids), max_length=max_length)
