"""Texts as tokens: with labels for classification and generation, or plain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from flwr_splitmix.data.errors import DataError
from flwr_splitmix.data.texts.rows import TextRows
from flwr_splitmix.words import are, cause, counted

PROMPT = "Question: {}\nAnswer:"
"""Template of a prompt; its answer follows after a space."""

LongTexts = Literal["refuse", "cut", "drop"]


@dataclass(frozen=True)
class LongTextsCount:
    """Numbers of all texts, of those that are too long, and of those that were left out.

    The others that are too long were truncated.
    """

    texts: int
    longer: int
    dropped: int


OnLong = Callable[[LongTextsCount], None]
"""Callback with the numbers of texts that are too long, if there are any."""


def token_ids(tokenizer: Any, *texts: Sequence[str], **options: Any) -> list[list[int]]:
    """Return the ids of the tokens of texts, or of pairs, as a tokenizer makes them.

    Raises
    ------
    DataError
        If the tokenizer's files are damaged, so that it opens and fails at a text.
    """
    try:
        return list(tokenizer(*texts, **options)["input_ids"])
    except BaseException as error:  # a panic of Rust's is none of Python's exceptions
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"the tokenizer fails at a text, so its files may be damaged ({cause(error)})"
        ) from error


def plain_tokens(
    texts: Sequence[str],
    tokenizer: Any,
    *,
    max_length: int,
    seconds: Sequence[str] = (),
    long_texts: LongTexts = "refuse",
    on_long: OnLong | None = None,
) -> tuple[list[Tensor], list[int]]:
    """Convert texts to token ids with the tokenizer's special tokens.

    Pairs are joined as the tokenizer does it: BERT's puts a separator between the two texts,
    Llama's a start token before each, and a tokenizer without special tokens, such as Qwen's,
    nothing. There are no token types, so that only these tokens separate the texts.

    Parameters
    ----------
    max_length
        Maximum number of tokens of a text, or of both texts of a pair together.
    seconds
        The second text of each pair; () for single texts.
    long_texts
        Treatment of longer texts: raise, truncate (special tokens at the end are kept; of a pair,
        the longer text is truncated first), or leave out.
    on_long
        Called with the numbers of texts if any is longer.

    Returns
    -------
    tuple of list of Tensor and list of int
        Token ids of each text, int64 (t,), and the indices of these texts.

    Raises
    ------
    DataError
        If a text is too long and `long_texts` is "refuse", a text has no token, or
        `max_length` < 1.
    ValueError
        If the numbers of texts and of `seconds` differ.
    """
    _check_length(max_length)
    if seconds and len(seconds) != len(texts):
        raise ValueError(
            f"there {are(len(texts))} {counted(len(texts), 'text')} and "
            f"{counted(len(seconds), 'second')} of pairs"
        )
    if not texts:
        return [], []

    def encode(numbers: Sequence[int], **options: Any) -> list[list[int]]:
        columns = [[column[number] for number in numbers] for column in (texts, seconds) if column]
        return token_ids(tokenizer, *columns, **options)

    encoded = encode(range(len(texts)), verbose=False)
    longer = [number for number, ids in enumerate(encoded) if len(ids) > max_length]
    if longer and long_texts == "cut":
        cut = encode(longer, truncation=True, max_length=max_length)
        for number, ids in zip(longer, cut, strict=True):
            encoded[number] = ids
    fitting = _fitting(
        [torch.tensor(ids, dtype=torch.int64) for ids in encoded], max_length, long_texts
    )
    _report_long_texts(on_long, len(texts), len(longer), len(texts) - len(fitting[1]))
    return fitting


def _report_long_texts(on_long: OnLong | None, texts: int, longer: int, dropped: int) -> None:
    if longer and on_long is not None:
        on_long(LongTextsCount(texts, longer, dropped))


def classification_tokens(
    rows: TextRows,
    tokenizer: Any,
    *,
    max_length: int,
    long_texts: LongTexts = "refuse",
    on_long: OnLong | None = None,
) -> tuple[list[Tensor], list[int]]:
    """Convert labelled sentences, or pairs of them, to ids and labels; see `plain_tokens`.

    Returns
    -------
    tuple of list of Tensor and list of int
        Token ids of each text, int64 (t,), and its class.
    """
    ids, kept_rows = plain_tokens(
        rows.texts,
        tokenizer,
        max_length=max_length,
        seconds=rows.seconds,
        long_texts=long_texts,
        on_long=on_long,
    )
    return ids, [int(rows.labels[row]) for row in kept_rows]


def generation_tokens(
    rows: TextRows,
    tokenizer: Any,
    *,
    max_length: int,
    long_texts: LongTexts = "refuse",
    on_long: OnLong | None = None,
    ignored: int = -100,
) -> tuple[list[Tensor], list[Tensor]]:
    """Convert prompts and answers to ids and labels: prompt, answer, end-of-text token.

    Parameters
    ----------
    max_length, long_texts, on_long
        As for `plain_tokens`, for prompt and answer together; "cut" truncates the answer, and
        drops rows of whose answer no token would be left.
    ignored
        Label of tokens without loss, such as the prompt's.

    Returns
    -------
    tuple of lists of Tensor
        Token ids and labels of each row, int64 (t,); the labels are `ignored` for the prompt, and
        the ids for the answer and the end.

    Raises
    ------
    DataError
        As for `plain_tokens`, or if the tokenizer has no end-of-text token.
    """
    _check_length(max_length)
    end = tokenizer.eos_token_id
    if end is None:
        raise DataError(
            "the tokenizer has no token for the end of a text, which an answer must have"
        )
    if not rows.texts:
        return [], []
    prompts = token_ids(tokenizer, [PROMPT.format(text) for text in rows.texts], verbose=False)
    answers = token_ids(
        tokenizer,
        [f" {answer}" for answer in rows.answers],
        add_special_tokens=False,
        verbose=False,
    )
    pairs = [
        (_without_end(prompt, end), [*answer, end])
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    longer = sum(len(prompt) + len(answer) > max_length for prompt, answer in pairs)
    if long_texts == "cut":
        pairs = [
            (prompt, answer[: max_length - len(prompt)])
            for prompt, answer in pairs
            if len(prompt) < max_length
        ]
    texts = [torch.tensor([*prompt, *answer], dtype=torch.int64) for prompt, answer in pairs]
    ids, kept_rows = _fitting(texts, max_length, long_texts)
    _report_long_texts(on_long, len(rows), longer, len(rows) - len(kept_rows))
    labels = []
    for row in kept_rows:
        label = texts[row].clone()
        label[: len(pairs[row][0])] = ignored
        labels.append(label)
    return ids, labels


def _without_end(prompt: list[int], end: int) -> list[int]:
    """Remove the end token that some tokenizers add to every text, as an answer follows."""
    return prompt[:-1] if len(prompt) > 1 and prompt[-1] == end else prompt


def _check_length(max_length: int) -> None:
    if max_length < 1:
        raise DataError(f"the most tokens of a text are {max_length}; they must be at least 1")


def _fitting(
    ids: list[Tensor], max_length: int, long_texts: LongTexts
) -> tuple[list[Tensor], list[int]]:
    for number, text in enumerate(ids):
        if not len(text):
            raise DataError(
                f"text {number} of {len(ids)}, counted from 0, has no token: the tokenizer makes "
                "none of its characters, such as invisible ones; leave it out of the data, or take "
                "another tokenizer"
            )
        if len(text) > max_length and long_texts == "refuse":
            raise DataError(
                f"text {number} has {len(text)} tokens, but at most {max_length} {are(max_length)} "
                "allowed; raise max-length, or cut or drop long texts (long-texts='cut' or 'drop')"
            )
    kept_rows = [number for number, text in enumerate(ids) if len(text) <= max_length]
    return [ids[number] for number in kept_rows], kept_rows
