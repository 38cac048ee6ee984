"""Tokens that a tokenizer can pad with, so that a classifier still finds a text's end."""

from __future__ import annotations

from typing import Any

_SHORT = "a"
"""A text whose last token shows what a tokenizer puts at a text's end."""


def check_padding(tokenizer: Any, padding: int | None) -> None:
    """Refuse a padding token that also ends every text, for a decoder that classifies.

    It was trained to read a class at a text's last token in the mask; transformers takes the last
    one that is not the padding token, which would be the one before.

    Parameters
    ----------
    tokenizer
        A tokenizer of transformers.
    padding
        Id of the padding token; None for none.

    Raises
    ------
    ValueError
        If it is the last token of a short text.
    """
    if padding is not None and padding == _last_token(tokenizer):
        raise ValueError(
            f"the tokenizer pads with {tokenizer.convert_ids_to_tokens(padding)!r}, with which it "
            "also ends each text, so that transformers' classifier would not find a text's last "
            f"token; give it another padding token ({example_of_padding(tokenizer)})"
        )


def _last_token(tokenizer: Any) -> int | None:
    """Return the id of the token that ends a short text; None if there is none.

    Nor is there one of a damaged tokenizer, which is named where it reads the run's texts.
    """
    try:
        ids = tokenizer(_SHORT)["input_ids"]
    except Exception:
        return None
    return int(ids[-1]) if ids else None


def example_of_padding(tokenizer: Any) -> str:
    """Return a setting of `padding-token` as an example, unlike what ends each text.

    Only tokens that no text spells out are taken; if there is none, it says what is needed.
    """
    last, vocabulary = _last_token(tokenizer), tokenizer.get_vocab()
    special = [tokenizer.eos_token, tokenizer.bos_token, *tokenizer.all_special_tokens]
    for token in (*special, *tokenizer.get_added_vocab()):
        if vocabulary.get(token, last) != last and token != tokenizer.unk_token:
            return f"padding-token={token!r}, for example"
    return "padding-token, a token that ends no text"
