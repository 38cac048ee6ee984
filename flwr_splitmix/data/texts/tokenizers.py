"""Tokenizers: opened with a model, or trained here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr_splitmix.data.errors import DataError, import_extra
from flwr_splitmix.data.texts.tokens import token_ids
from flwr_splitmix.pretrained import located
from flwr_splitmix.words import cause

PADDING, END = "<pad>", "<end>"
"""Special tokens of tokenizers trained here; END also begins every text."""

_LEAST_VOCABULARY = 256 + 2  # the bytes and the special tokens

_SHORT = "a"
"""A text whose last token shows what a tokenizer puts at a text's end."""

_PURPOSE = "reading text as tokens"


def train_tokenizer(texts: Iterable[str], vocab_size: int = 512) -> Any:
    """Train a byte-level BPE tokenizer; the same texts give the same tokenizer.

    Its vocabulary has all bytes, so it can encode any text. It puts `END` before each text, and
    before each of a pair, so that a decoder can detect the start of a text.

    Parameters
    ----------
    texts
        Public texts, as the vocabulary reveals their content.
    vocab_size
        Maximum number of tokens, at least 258; short texts may give fewer.

    Returns
    -------
    transformers.PreTrainedTokenizerFast

    Raises
    ------
    DataError
        If `vocab_size` is too small.

    Source: Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units" (2016),
    over bytes as in GPT-2.
    """
    if vocab_size < _LEAST_VOCABULARY:
        raise DataError(f"the vocabulary's size is {vocab_size}; it must be at least 258")
    tokenizers = import_extra("tokenizers", _PURPOSE, "language")
    transformers = import_extra("transformers", _PURPOSE, "language")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PADDING, END],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{END} $A",
        pair=f"{END} $A {END} $B",
        special_tokens=[(END, made.token_to_id(END))],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=PADDING, eos_token=END, bos_token=END
    )


def open_tokenizer(source: str, *, padding: str = "") -> Any:
    """Open the tokenizer of a model.

    Parameters
    ----------
    source
        A folder with tokenizer files, the name of a decoder that `splitmix model fetch` has
        downloaded, or the name of a model on the Hugging Face hub.
    padding
        Token for padding; "": the tokenizer's own.

    Returns
    -------
    transformers tokenizer

    Raises
    ------
    DataError
        If there is no tokenizer, it needs code of its own, which never runs, it lacks the token
        `padding`, or it has no padding token.
    """
    transformers = import_extra("transformers", _PURPOSE, "language")
    try:
        folder = Path(located(source)).expanduser()
    except ValueError as error:
        raise DataError(str(error)) from error
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder) if folder.is_dir() else source, trust_remote_code=False
        )
    except Exception as error:  # from a missing file to a missing network
        raise DataError(
            f"{source!r} has no tokenizer that can be opened ({cause(error)})"
        ) from error
    if padding:
        if padding not in tokenizer.get_vocab():
            raise DataError(
                f"padding-token is {padding!r}, but the tokenizer of {source!r} has no such token; "
                f"name one of its tokens: {_example(tokenizer)}"
            )
        tokenizer.pad_token = padding
    if tokenizer.pad_token_id is None:
        raise DataError(
            f"the tokenizer of {source!r} has no padding token; name one of its tokens to pad "
            f"with: {_example(tokenizer)}"
        )
    return tokenizer


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
        If it is the last token of a short text, or the tokenizer fails at one.
    """
    if padding is not None and padding == _last_token(tokenizer):
        raise ValueError(
            f"the tokenizer pads with {tokenizer.convert_ids_to_tokens(padding)!r}, with which it "
            "also ends each text, so that transformers' classifier would not find a text's last "
            f"token; give it another padding token ({_example(tokenizer)})"
        )


def _last_token(tokenizer: Any) -> int | None:
    """Return the id of the token that ends a short text; None if the text has no token."""
    (ids,) = token_ids(tokenizer, [_SHORT])
    return int(ids[-1]) if ids else None


def _example(tokenizer: Any) -> str:
    """Return a setting of `padding-token` as an example, unlike what ends each text.

    Only tokens that no text spells out are taken; if there is none, it says what is needed.
    """
    last, vocabulary = _last_token(tokenizer), tokenizer.get_vocab()
    special = [tokenizer.eos_token, tokenizer.bos_token, *tokenizer.all_special_tokens]
    for token in (*special, *tokenizer.get_added_vocab()):
        if vocabulary.get(token, last) != last and token != tokenizer.unk_token:
            return f"padding-token={token!r}, for example"
    return "padding-token, a token that ends no text"
