"""Tokens that a tokenizer can pad with, so that a classifier still finds a text's end."""

from __future__ import annotations

from typing import Any

_SHORT = "a"
"""A text whose last token shows what a tokenizer puts at a text's end."""


def ends_texts(tokenizer: Any, token: int | None) -> bool:
    """Return whether a tokenizer of transformers puts a token, by its id, at the end of each text.

    A decoder is trained to read a class at a text's last token in the mask; transformers takes the
    last one that is not the padding token, which would be the one before.
    """
    return token is not None and token == _last_token(tokenizer)


def another_padding(tokenizer: Any) -> str | None:
    """Return a special token that can pad, unlike what ends each text; None if there is none."""
    last, vocabulary = _last_token(tokenizer), tokenizer.get_vocab()
    special = [tokenizer.eos_token, tokenizer.bos_token, *tokenizer.all_special_tokens]
    for token in (*special, *tokenizer.get_added_vocab()):
        if token in vocabulary and vocabulary[token] != last and token != tokenizer.unk_token:
            return str(token)
    return None


def example_of_padding(tokenizer: Any) -> str:
    """Return a setting of `padding-token` as an example, or else a description of such a token."""
    token = another_padding(tokenizer)
    if token is None:
        return "padding-token, a token that ends no text"
    return f"padding-token={token!r}, for example"


def _last_token(tokenizer: Any) -> int | None:
    """Return the id of the token that a tokenizer adds at the end of a text; None if it adds none.

    Nor is there one of a damaged tokenizer, which is named where it reads the run's texts.
    """
    try:
        plain = tokenizer(_SHORT, add_special_tokens=False)["input_ids"]
        ids = tokenizer(_SHORT)["input_ids"]
    except Exception:
        return None
    return int(ids[-1]) if ids and ids[-1:] != plain[-1:] else None
